"""A client sends bytes that are no protobuf, no gRPC framing and no HTTP.

Calls get INVALID_ARGUMENT, broken connections are closed, the server lives.
"""

from __future__ import annotations

import random

import grpc
from tritonclient.grpc import service_pb2

from attacks.story import Victim, exchange, tell


def attack(victim: Victim) -> None:
    """From malformed messages down to noise on the socket."""
    numbers = random.Random(3)
    message = service_pb2.ModelInferRequest(model_name="echo", id="x", raw_input_contents=[bytes(64)])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    good = message.SerializeToString()
    with grpc.insecure_channel(victim.grpc) as channel:
        for method in ("ModelInfer", "ModelConfig", "SystemSharedMemoryRegister"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            for _ in range(200):
                damaged = bytearray(good)
                for _ in range(numbers.randrange(1, 4)):
                    damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
                try:
                    call(bytes(damaged[: numbers.randrange(len(damaged) + 1)]), timeout=60)
                except grpc.RpcError as error:
                    # A damaged message may still be a message, of another model or shape.
                    names = {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "INTERNAL"}
                    assert error.code().name in names, error
    for address in (victim.grpc, victim.http, victim.metrics):
        for start in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST /v2/models/echo/infer HTTP/1.1\r\n"):
            exchange(address, start + numbers.randbytes(4096))


if __name__ == "__main__":
    tell(attack)
