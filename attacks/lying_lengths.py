"""A client announces lengths that are not true: a JSON header longer than its body, a gRPC message of 2 GiB in 16
bytes, a body that ends early.

Nothing is allocated for what does not come, and each gets an error or its connection closed.
"""

from __future__ import annotations

import json

from attacks.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, call_headers, frame, message, settings
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
    """The headers of a ModelInfer, then 16 bytes of a message of `length`."""
    start = frame(HEADERS, END_HEADERS, 1, call_headers()) + frame(DATA, END_STREAM, 1, message(bytes(16), length))
    return PREFACE + settings() + start


if __name__ == "__main__":
    tell(attack)
