"""Hundreds of connections that say nothing, half a request, or a byte now and then, and one that is half-closed.

They cost a descriptor each and delay nobody.
"""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, suppress

from attacks import http2
from attacks.story import Victim, exchange, tell

COUNT = 100
BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
WHOLE = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CALL = http2.PREFACE + http2.settings() + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.call_headers())


def attack(victim: Victim) -> None:
    """Opens them all, feeds them bytes, and asks in between."""
    with ExitStack() as stack:
        slow: list[tuple[socket.socket, bytes]] = []
        for address, start in [
            (victim.http, b""),
            (victim.http, WHOLE),
            (victim.http, CHUNKED),
            (victim.metrics, b"GET /metr"),
            (victim.grpc, b""),
            (victim.grpc, CALL),
        ]:
            host, port = address.rsplit(":", 1)
            for _ in range(COUNT):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
                connection.sendall(start[:20])
                slow.append((connection, start[20:]))
        for step in range(0, 200, 40):
            for connection, rest in slow:
                with suppress(OSError):
                    connection.sendall(rest[step : step + 40])
            assert exchange(victim.http, WHOLE + BODY, hang_up=False).startswith(b"HTTP/1.1 200")
        for connection, _ in slow[::2]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        assert exchange(victim.http, WHOLE + BODY, hang_up=False).startswith(b"HTTP/1.1 200")


if __name__ == "__main__":
    tell(attack)
