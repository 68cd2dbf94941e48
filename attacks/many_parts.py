"""A client sends messages of millions of parts that are next to nothing each: inputs, outputs, raw entries, dimensions,
parameters, and groups that no message has.

They are counted before they are decoded; each is refused, and memory does not grow with them.
"""

from __future__ import annotations

import grpc

from attacks.story import Victim, exchange, tell

SIZE = 40 << 20
"""Bytes of a message; decoded, one of empty inputs would take 3 GB."""


def attack(victim: Victim) -> None:
    """Protobuf, then JSON."""
    with grpc.insecure_channel(victim.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        dims = b"\x2a\x84\x80\x80\x01" + b"\x1a\x80\x80\x80\x01" + bytes(2 << 20)
        for part in (b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x22\x00", b"\x2a\x02\x22\x00", b"\x7b\x7c", dims):
            message = b"\x0a\x04echo" + part * (SIZE // len(part))
            try:
                call(message, timeout=60)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
            else:
                raise AssertionError(f"a message of {part[:9]!r} was answered")
    json_parts(victim)


def json_parts(victim: Victim) -> None:
    start = b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": '
    tensor = b'{"name":"","datatype":"","shape":[]},'
    many = b",".join(b'"%d":0' % number for number in range(SIZE // 12))
    for body in (
        b'{"parameters": {"a": [' + b"[]," * (SIZE // 3) + b"[]]}",
        b'{"parameters": {"a": ' + b'[{"b":0},' * 10 + b"0",
        b'{"parameters": {' + many + b"}",
        start + b'[1, 1], "parameters": {' + many + b"}",
        start + b"[" + b"1," * (SIZE // 2) + b"1]}",
        b'{"inputs": [' + tensor * (SIZE // len(tensor)) + tensor[:-1] + b"]",
        b'{"inputs": [], "outputs": [' + b'{"name":""},' * (SIZE // 12) + b'{"name":""}]',
    ):
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        whole = body + b"}" if body.endswith((b"}", b"]")) else body
        answer = exchange(victim.http, head % len(whole) + whole, hang_up=False)
        assert answer[9:12] == b"400", (body[:60], answer[:300])


if __name__ == "__main__":
    tell(attack)
