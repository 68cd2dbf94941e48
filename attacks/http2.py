"""HTTP/2 by hand: what no library would send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: dict[int, int] | None = None) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in (values or {}).items()))


def literal(name: bytes, value: bytes) -> bytes:
    """A header that no table keeps."""
    assert len(name) < 127
    assert len(value) < 127
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: str = INFER, extra: bytes = b"") -> bytes:
    """The header block of a gRPC call."""
    return (
        b"\x83\x86"
        + literal(b":path", path.encode())
        + literal(b":authority", b"victim")
        + literal(b"content-type", b"application/grpc")
        + literal(b"te", b"trailers")
        + extra
    )


def message(payload: bytes, length: int | None = None) -> bytes:
    """A gRPC message, of the length that it says or of another."""
    return b"\x00" + struct.pack(">I", len(payload) if length is None else length) + payload


def call(stream: int, payload: bytes, path: str = INFER, extra: bytes = b"") -> bytes:
    """The frames of a whole unary call; its message must fit one frame."""
    data = message(payload)
    return frame(HEADERS, END_HEADERS, stream, call_headers(path, extra)) + frame(DATA, END_STREAM, stream, data)


class Connection:
    """One connection, greeted unless told otherwise."""

    def __init__(self, address: str, own_settings: dict[int, int] | None = None) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._rest = b""
        self.send(PREFACE + settings(own_settings))

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def greet(self) -> None:
        """Takes the server's settings; before that they do not hold, its windows among them."""
        self.receive_until(SETTINGS)
        self.send(frame(SETTINGS, ACK, 0, b""))

    def receive(self) -> tuple[int, int, int, bytes] | None:
        """The next frame as kind, flags, stream, payload; `None` when the server has closed."""
        head = self._exactly(9)
        if head is None:
            return None
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        payload = self._exactly(int.from_bytes(head[:3], "big"))
        return None if payload is None else (kind, flags, stream & 0x7FFFFFFF, payload)

    def receive_until(self, wanted: int) -> tuple[int, int, int, bytes] | None:
        """The next frame of this kind; settings are acknowledged on the way and all else is dropped."""
        while (got := self.receive()) is not None and got[0] != wanted:
            if got[0] == SETTINGS and not got[1] & ACK:
                self.send(frame(SETTINGS, ACK, 0, b""))
        return got

    def _exactly(self, count: int) -> bytes | None:
        while len(self._rest) < count:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._rest += chunk
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken
