"""A client announces gigabytes and sends nothing, names 50,000 inputs, and sends megabytes to control verbs.

What is announced costs nobody anything, and each is refused at once.
"""

from __future__ import annotations

import json
import socket

import grpc
from tritonclient.grpc import service_pb2

from attacks.story import Victim, exchange, tell

ANNOUNCED = 1_700_000_000
"""Just under what large messages may hold of the bytes in flight of the server under attack."""


def attack(victim: Victim) -> None:
    """Holds silent connections open while it does the rest."""
    host, port = victim.http.rsplit(":", 1)
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {ANNOUNCED}\r\n\r\n".encode()
    silent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(5)]
    for connection in silent:
        connection.sendall(head)
    many_inputs(victim)
    large_control(victim)
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
    good = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    assert exchange(victim.http, good + body, hang_up=False).startswith(b"HTTP/1.1 200")
    for connection in silent:
        connection.close()


def many_inputs(victim: Victim) -> None:
    request = service_pb2.ModelInferRequest(model_name="echo")
    for number in range(50_000):
        request.inputs.add(name=f"i{number}", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.extend([b"1234"] * 50_000)
    refused(victim, "ModelInfer", request.SerializeToString(), "expected 1 inputs but got 50000 inputs")


def large_control(victim: Victim) -> None:
    refused(victim, "RepositoryIndex", bytes(2 << 20), "is over the limit of 1048576")


def refused(victim: Victim, rpc: str, message: bytes, words: str) -> None:
    with grpc.insecure_channel(victim.grpc) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{rpc}")
        try:
            call(message, timeout=60)
        except grpc.RpcError as error:
            assert words in error.details(), error
        else:
            raise AssertionError(f"{rpc} of {len(message)} bytes was answered")


if __name__ == "__main__":
    tell(attack)
