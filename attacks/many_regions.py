"""A client registers one object under 100,000 names and lists them, and others register objects and vanish in a loop.

Names are cheap, the list of them too, and what a vanished client leaves behind is not resident.
"""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from attacks.story import Region, Victim, start, tell

COUNT = 100_000
AT_ONCE = 500
LONG_NAME = "x" * 1025

VANISHING = """
import os, sys, tritonclient.grpc as grpcclient
from attacks.story import Region, Victim
client = grpcclient.InferenceServerClient(sys.argv[1])
for number in range(100):
    region = Region(f"headrace_attack_gone_{sys.argv[2]}_{number}")
    region.register(client)
    region.unlink()
os._exit(1)
"""


def attack(victim: Victim) -> None:
    """Names first, then the vanishing ones; at the end all is forgotten."""
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        region = Region("headrace_attack_many", 4096)
        try:
            names(victim, client, region)
        finally:
            region.unlink()
        for number in range(5):
            environment = {**os.environ, "PYTHONPATH": os.getcwd()}  # noqa: PTH109
            command = [sys.executable, "-c", VANISHING, victim.grpc, str(number)]
            assert subprocess.run(command, env=environment, check=False).returncode == 1
        working = Region("headrace_attack_working")
        working.register(client)
        start(client, "add", working).result(60)
        client.unregister_system_shared_memory()
        working.unlink()


def names(victim: Victim, client: grpcclient.InferenceServerClient, region: Region) -> None:
    with grpc.insecure_channel(victim.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        waiting = []
        for number in range(COUNT):
            request = service_pb2.SystemSharedMemoryRegisterRequest(
                name=f"many/{number}\n", key=f"/{region.name}", byte_size=4096
            )
            waiting.append(stub.SystemSharedMemoryRegister.future(request, timeout=60))
            if len(waiting) == AT_ONCE:
                for future in waiting:
                    future.result()
                waiting.clear()
    try:
        client.register_system_shared_memory(LONG_NAME, f"/{region.name}", 4096)
    except InferenceServerException as error:
        assert "the limit is 1024" in str(error), error
    else:
        raise AssertionError("a name of 1025 bytes was taken")
    assert len(client.get_system_shared_memory_status().regions) >= COUNT
    assert client.is_server_ready(), "the list kept the control loop too long"
    client.unregister_system_shared_memory()
    assert client.get_system_shared_memory_status().regions == {}


if __name__ == "__main__":
    tell(attack)
