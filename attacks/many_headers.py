"""A client sends 100,000 headers, at once, bit by bit and without an end, over HTTP/1.1 and HTTP/2.

Nobody keeps them: an error, or the connection is closed.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from attacks import http2
from attacks.story import Victim, exchange, tell

COUNT = 100_000


def attack(victim: Victim) -> None:
    """One request of many headers, one very long header, then blocks of HTTP/2 that go on and on."""
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
    many = b"".join(b"h%d: x\r\n" % number for number in range(COUNT))
    for headers in (many, b"h: " + b"x" * 10 * COUNT + b"\r\n", b"h" * 10 * COUNT):
        for end in (b"\r\n", b""):
            answer = exchange(victim.http, head + headers + end)
            assert not answer.startswith(b"HTTP/1.1 200"), answer[:100]
    literals = b"".join(http2.literal(b"h%d" % number, b"x") for number in range(COUNT))
    for block in (literals, http2.literal(b"h", b"x" * 100) * (COUNT // 10)):
        endless(victim, block, http2.END_HEADERS)
        endless(victim, block, 0)
    indexed(victim)


def endless(victim: Victim, block: bytes, flags: int) -> None:
    """A header block over many CONTINUATION frames; without the flag it never ends."""
    with http2.Connection(victim.grpc) as connection, suppress(OSError):
        connection.send(http2.frame(http2.HEADERS, 0, 1, http2.call_headers()))
        for at in range(0, len(block), 16_000):
            last = at + 16_000 >= len(block)
            connection.send(http2.frame(http2.CONTINUATION, flags if last else 0, 1, block[at : at + 16_000]))
        if flags:
            refused(connection)


def indexed(victim: Victim) -> None:
    """One header of 4,000 bytes in the table of HPACK, then 16,000 references of one byte to it: 64 MB in a frame."""
    with http2.Connection(victim.grpc) as connection, suppress(OSError):
        value = b"\x7f" + bytes([(4000 - 127) % 128 | 128, (4000 - 127) // 128]) + b"x" * 4000
        stored = b"\x40\x01h" + value
        connection.send(http2.frame(http2.HEADERS, 0, 1, http2.call_headers() + stored))
        connection.send(http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, b"\xbe" * 16_000))
        refused(connection)


def refused(connection: http2.Connection) -> None:
    """The call gets an error or the connection its end; no answer."""
    got = connection.receive()
    while got is not None and got[0] not in (http2.HEADERS, http2.RST_STREAM, http2.GOAWAY):
        got = connection.receive()
    assert got is None or got[0] != http2.HEADERS or b"431" in got[3] or got[1] & http2.END_STREAM, got


if __name__ == "__main__":
    socket.setdefaulttimeout(60)
    tell(attack)
