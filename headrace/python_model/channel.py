"""The messages between the wire and this process; their format is told in `src/child.rs`."""

from __future__ import annotations

import array
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

EXECUTE, BLOCK, ASKED, ANSWERS, GROW, CANCELLED = 1, 2, 3, 16, 17, 18
_MOST_DESCRIPTORS = 253
_READ_AHEAD = 64 << 10
FIRST_BLOCK = 1 << 62
"""Numbers of memory that is the server's own, and not a client's."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_PLACE = struct.Struct("<IQQQ")
_OUTPUT = struct.Struct("<BQQ")


class Place(NamedTuple):
    """Where an input lies, or an output that is wanted; object 0 is the block for outputs."""

    position: int
    object: int
    offset: int
    nbytes: int
    shape: tuple[int, ...] = ()


class Asked(NamedTuple):
    """One request of a batch."""

    id: str
    parameters: str
    inputs: list[Place]
    outputs: list[Place]


class Message(NamedTuple):
    """What the wire sent."""

    kind: int
    objects: list[tuple[int, int, int]]
    """Number, bytes and descriptor of memory that is new."""
    retired: list[int]
    """Numbers of memory that is not used any more."""
    fields: Fields


class Fields:
    """Reads the fields of a message, one after another."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        """A u8."""
        self._at += 1
        return self._data[self._at - 1]

    def count(self) -> int:
        """A u32."""
        (value,) = _U32.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)

    def number(self) -> int:
        """A u64."""
        (value,) = _U64.unpack_from(self._data, self._at)
        self._at += 8
        return int(value)

    def pair(self) -> tuple[int, int]:
        """Two u64."""
        self._at += 16
        first, second = _PAIR.unpack_from(self._data, self._at - 16)
        return first, second

    def text(self) -> str:
        """Its length and UTF-8; a client's id may be anything."""
        start = self._at + 4
        (length,) = _U32.unpack_from(self._data, self._at)
        self._at = start + length
        return self._data[start : self._at].decode("utf-8", "replace") if length else ""

    def place(self) -> Place:
        """Of an output."""
        self._at += 28
        return Place(*_PLACE.unpack_from(self._data, self._at - 28))

    def input(self) -> Place:
        """Of an input, with its shape."""
        position, number, offset, nbytes = _PLACE.unpack_from(self._data, self._at)
        rank = _U32.unpack_from(self._data, self._at + 28)[0]
        start = self._at + 32
        self._at = start + 8 * rank
        return Place(position, number, offset, nbytes, struct.unpack_from(f"<{rank}q", self._data, start))

    def request(self) -> Asked:
        """One request."""
        ident, parameters = self.text(), self.text()
        inputs = [self.input() for _ in range(self.count())]
        return Asked(ident, parameters, inputs, [self.place() for _ in range(self.count())])


class Channel:
    """The socket to the wire. One message is under way at a time."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._buffer = bytearray(_READ_AHEAD)
        self._space = socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS)

    def receive(self) -> Message | None:
        """The next message; `None` when the wire has closed the connection."""
        count, beside, _, _ = self._socket.recvmsg_into([self._buffer], self._space)
        if count == 0:
            return None
        descriptors = array.array("i")
        for level, kind, data in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        data = bytes(memoryview(self._buffer)[:count])
        while len(data) < 4 or len(data) < 4 + _U32.unpack_from(data)[0]:
            more = self._socket.recv(1 << 20)
            if not more:
                return None
            data += more
        return _message(data, list(descriptors))

    def send(self, kind: int, *parts: bytes) -> None:
        """Sends a message."""
        length = 1 + sum(map(len, parts))
        self._socket.sendall(b"".join((_U32.pack(length), bytes((kind,)), *parts)))


def _message(data: bytes, descriptors: list[int]) -> Message:
    fields = Fields(data)
    fields.count()
    kind = fields.byte()
    if kind == ASKED:
        return Message(kind, [], [], fields)
    objects_count, retired_count = fields.count(), fields.count()
    pairs = [fields.pair() for _ in range(objects_count)]
    retired = [fields.number() for _ in range(retired_count)]
    objects = [(*pair, descriptor) for pair, descriptor in zip(pairs, descriptors)]
    return Message(kind, objects, retired, fields)


def number(value: int) -> bytes:
    """A u64."""
    return _U64.pack(value)


def count(value: int) -> bytes:
    """A u32."""
    return _U32.pack(value)


def text(value: str) -> bytes:
    """A text."""
    data = value.encode("utf-8", "replace")
    return _U32.pack(len(data)) + data


def error(kind: str, message: str) -> bytes:
    """An answer that is an error."""
    return b"\1" + text(kind) + text(message)


def output(position: int, dtype: str, placed: bool, offset: int, nbytes: int, shape: Sequence[int]) -> bytes:
    """An output of an answer."""
    rank = len(shape)
    return b"".join(
        (
            _U32.pack(position),
            text(dtype),
            _OUTPUT.pack(placed, offset, nbytes),
            _U32.pack(rank),
            struct.pack(f"<{rank}q", *shape),
        )
    )
