"""A client sends shapes whose products overflow, negative and huge dimensions, and names that are empty, doubled, very
long or made of slashes and control characters.

Each gets an error that is clear, and no other.
"""

from __future__ import annotations

import json

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from attacks.story import Victim, exchange, tell

SHAPES = [
    [1, 2**62, 4],
    [2**32, 2**32],
    [2**63 - 1, 2**63 - 1],
    [1, -1],
    [-1, 1],
    [-(2**63), 1],
    [-1, -1],
    [1, 2**63 - 1],
    [0, 2**63 - 1],
    [1] * 1000,
    [2] * 64,
    [],
    [0],
]
NAMES = [
    "",
    "/",
    "../../etc/passwd",
    "a/b",
    "\0",
    "\x1b[31m\r\n",
    "%s%n",
    "x" * 100_000,
    "\ud7ff\U0010ffff",
    "INPUT0\0",
    " ",
]


def attack(victim: Victim) -> None:
    """Every odd shape and name, at every place where one can be."""
    with grpc.insecure_channel(victim.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for shape in SHAPES:
            refused(stub, request(shape=shape))
            posted(victim, tensor(shape=shape))
            posted(victim, {**tensor(shape=shape), "data": []})
        for name in NAMES:
            refused(stub, request(name=name))
            refused(stub, request(model=name))
            refused(stub, request(output=name))
            refused(stub, request(datatype=name))
            posted(victim, tensor(name=name))
            posted(victim, tensor(datatype=name))
            posted(victim, tensor(), outputs=[{"name": name}])
            region(stub, name)
        doubled = request()
        doubled.inputs.extend([doubled.inputs[0]] * 2)
        doubled.raw_input_contents.extend([bytes(4)] * 2)
        refused(stub, doubled)
        posted(victim, tensor(), tensor())
        for number in ("1e999", "-0.5", "99999999999999999999999", '"1"', "null", "[[1]", "true", "{}"):
            body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%s],"data":[1]}]}' % number.encode()
            post(victim, body)


def request(
    name: str = "INPUT0", model: str = "echo", shape: list[int] | None = None, datatype: str = "FP32", output: str = ""
) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4)])
    made.inputs.add(name=name, datatype=datatype, shape=[1, 1] if shape is None else shape)
    if output:
        made.outputs.add(name=output)
    return made


def refused(stub: service_pb2_grpc.GRPCInferenceServiceStub, message: service_pb2.ModelInferRequest) -> None:
    if message == request():
        return  # an odd name that is none
    try:
        stub.ModelInfer(message, timeout=60)
    except grpc.RpcError as error:
        assert error.code().name in {"INVALID_ARGUMENT", "NOT_FOUND"}, (str(message)[:200], error)
    else:
        raise AssertionError(f"answered: {str(message)[:200]}")


def region(stub: service_pb2_grpc.GRPCInferenceServiceStub, name: str) -> None:
    """No region has this key, and no file outside of shared memory is looked for."""
    try:
        stub.SystemSharedMemoryRegister(
            service_pb2.SystemSharedMemoryRegisterRequest(name="odd", key=name, byte_size=4), timeout=60
        )
    except grpc.RpcError as error:
        assert error.code().name in {"INVALID_ARGUMENT", "INTERNAL"}, error
    else:
        raise AssertionError(f"a region of key {name!r} was registered")


def tensor(**changes: object) -> dict[str, object]:
    return {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1], **changes}


def posted(victim: Victim, *inputs: dict[str, object], **more: object) -> None:
    post(victim, json.dumps({"inputs": inputs, **more}).encode())


def post(victim: Victim, body: bytes) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    answer = exchange(victim.http, head + body, hang_up=False)
    assert answer[9:12] == b"400", (body[:200], answer[:300])
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


if __name__ == "__main__":
    tell(attack)
