"""A client sends offsets and sizes whose sums wrap around 64 bits, so that a naive check would pass.

Each gets an error, and no byte outside the region is touched.
"""

from __future__ import annotations

import grpc
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from attacks.story import Region, Victim, tell

TOP = 2**64 - 1


def attack(victim: Victim) -> None:
    """Tries sums at both ends."""
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        region = Region("headrace_attack_sums", 4096)
        try:
            registrations(client, region)
            region.register(client)
            references(victim, region)
        finally:
            client.unregister_system_shared_memory(region.name)
            region.unlink()


def registrations(client: grpcclient.InferenceServerClient, region: Region) -> None:
    for offset, size in [(TOP, 1), (1, TOP), (TOP, TOP), (2**63, 2**63), (4096, 1), (0, TOP), (TOP - 4095, 4096)]:
        try:
            client.register_system_shared_memory("sums", f"/{region.name}", size, offset)
        except InferenceServerException as error:
            assert "invalid args" in str(error), error
        else:
            raise AssertionError(f"offset {offset} and size {size} were registered")


def references(victim: Victim, region: Region) -> None:
    with grpc.insecure_channel(victim.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for offset, size in [(TOP, 4), (4, TOP), (TOP, TOP), (2**63, 2**63), (4096, 4), (4093, 4), (0, TOP)]:
            for shape in ([1, 1], [1, 2**62], [1, 2**63 - 1], [2**62, 2**62]):
                request = service_pb2.ModelInferRequest(model_name="echo")
                tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
                tensor.parameters["shared_memory_region"].string_param = region.name
                tensor.parameters["shared_memory_offset"].uint64_param = offset
                tensor.parameters["shared_memory_byte_size"].uint64_param = size
                try:
                    stub.ModelInfer(request, timeout=60)
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
                else:
                    raise AssertionError(f"offset {offset}, size {size}, shape {shape} were served")


if __name__ == "__main__":
    tell(attack)
