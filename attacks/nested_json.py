"""A client nests JSON a hundred thousand lists and objects deep, wherever JSON is read.

An error for that request; no stack runs out.
"""

from __future__ import annotations

from attacks.story import Victim, exchange, tell

DEPTH = 100_000
PATHS = [
    "/v2/models/echo/infer",
    "/v2/repository/index",
    "/v2/repository/models/echo/load",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/register",
    "/v2/trace/setting",
    "/v2/logging",
]
TENSOR = b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], '


def attack(victim: Victim) -> None:
    """Bodies of nothing else first, then bodies that are right up to the place."""
    lists, objects = b"[" * DEPTH, b'{"a":' * DEPTH
    for path in PATHS:
        for nested in (lists, objects, lists + b"]" * DEPTH, b'{"parameters":' + lists):
            refused(victim, path, nested)
    for start in (b'"data": ', b'"parameters": {"a": ', b'"ignored": ', b'"shape": '):
        for nested in (lists, objects, lists + b"1" + b"]" * DEPTH):
            refused(victim, PATHS[0], TENSOR + start + nested)
            refused(victim, PATHS[0], TENSOR + start + nested + b"}]}")


def refused(victim: Victim, path: str, body: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    answer = exchange(victim.http, head + body, hang_up=False)
    assert answer[9:12] in (b"400", b"501"), (path, body[:80], answer[:200])


if __name__ == "__main__":
    tell(attack)
