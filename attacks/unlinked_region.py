"""A client unlinks, unregisters and replaces its region while requests on it wait.

Leases keep the old memory: the requests are answered as if nothing had happened, from the bytes that they named.
"""

from __future__ import annotations

import mmap

import numpy as np
import tritonclient.grpc as grpcclient

from attacks.story import SIZE, Region, Victim, start, tell


def attack(victim: Victim) -> None:
    """Takes everything away but the memory itself."""
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        region = Region("headrace_attack_unlinked")
        with region.path.open("r+b") as file, mmap.mmap(file.fileno(), region.size) as memory:
            memory[:SIZE] = np.full(SIZE // 4, 7, np.float32).tobytes()
            region.register(client)
            first = start(client, "pairs", region)
            victim.until_waiting("pairs", 1)
            client.unregister_system_shared_memory(region.name)
            region.unlink()
            other = Region("headrace_attack_unlinked")
            other.register(client)
            start(client, "pairs", other).result(60)
            first.result(60)
            assert memory[SIZE:] == np.full(SIZE // 4, 8, np.float32).tobytes(), "the answer is not of the old memory"
        client.unregister_system_shared_memory(other.name)
        other.unlink()


if __name__ == "__main__":
    tell(attack)
