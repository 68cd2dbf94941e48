"""Errors of `pb_utils`."""

from __future__ import annotations


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """A function of `pb_utils` was called in a way that it cannot serve."""


class TritonError:
    """An error for one response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if code not in _KINDS:
            raise TritonModelException(f"TritonError code {code!r} is none of TritonError.UNKNOWN to CANCELLED")
        self._message = str(message)
        self._code = code

    def code(self) -> int:
        """One of the constants."""
        return self._code

    def message(self) -> str:
        """Its text."""
        return self._message


_KINDS = {
    TritonError.UNKNOWN: "UNKNOWN",
    TritonError.INTERNAL: "INTERNAL",
    TritonError.NOT_FOUND: "NOT_FOUND",
    TritonError.INVALID_ARG: "INVALID_ARGUMENT",
    TritonError.UNAVAILABLE: "UNAVAILABLE",
    TritonError.UNSUPPORTED: "UNSUPPORTED",
    TritonError.ALREADY_EXISTS: "ALREADY_EXISTS",
    TritonError.CANCELLED: "CANCELLED",
}


def kind_of(error: TritonError) -> str:
    """Its kind in the server's table of errors."""
    return _KINDS[error.code()]
