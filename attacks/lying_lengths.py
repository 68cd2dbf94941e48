"""A client announces lengths that are not true: a JSON header longer than its body, a gRPC message of 2 GiB in 16
bytes, a body that ends early.

Nothing is allocated for what does not come, and each gets an error or its connection closed.
"""

from __future__ import annotations

import json
import struct

from attacks.story import Victim, exchange, tell

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}).encode()


def attack(victim: Victim) -> None:
    """HTTP first, then HTTP/2 by hand."""
    for length in ("99999999999999999999", "-1", "1e3", str(len(BODY) + 1), str(2**63), "0x10", ""):
        answer = exchange(victim.http, http_request({"Inference-Header-Content-Length": length}, BODY), hang_up=False)
        assert answer.startswith(b"HTTP/1.1 400"), (length, answer[:100])
    cut_short = http_request({}, BODY, announced=len(BODY) + 100)
    assert not exchange(victim.http, cut_short).startswith(b"HTTP/1.1 200")
    huge = http_request({}, BODY, announced=2**62)
    assert b"overloaded" in exchange(victim.http, huge, hang_up=False), "4 EiB were announced and waited for"
    for length in (17, 2**31 - 1, 2**32 - 1):
        exchange(victim.grpc, grpc_call(length))


def http_request(headers: dict[str, str], body: bytes, announced: int | None = None) -> bytes:
    lines = ["POST /v2/models/echo/infer HTTP/1.1", "Host: victim", "Connection: close"]
    lines += [f"Content-Length: {len(body) if announced is None else announced}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def grpc_call(length: int) -> bytes:
    """HTTP/2 by hand: preface, settings, the headers of a ModelInfer, then 16 bytes of a message of `length`."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = b"\x83\x86" + literal(b":path", b"/inference.GRPCInferenceService/ModelInfer")
    headers += (
        literal(b":authority", b"victim") + literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")
    )
    message = b"\x00" + struct.pack(">I", length) + bytes(16)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + frame(0, 1, 1, message)


if __name__ == "__main__":
    tell(attack)
