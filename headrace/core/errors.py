"""What can go wrong, in the kinds of the one error table (`src/error.rs`), which gives each its gRPC and HTTP
status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum

from headrace.core.wire import WireError


class Kind(StrEnum):
    """Why a call failed, in Triton's terms (`TRITONSERVER_Error_Code`)."""

    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"
    RESTRICTED = "RESTRICTED"


class HeadraceError(Exception):
    """An error with a kind, to be told to a client or printed for the person who starts the server."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    @classmethod
    def from_wire(cls, error: WireError) -> HeadraceError:
        """The same error, as raised by the extension."""
        kind, message = error.args
        return cls(Kind(kind), message)


class ConfigError(HeadraceError):
    """A config.pbtxt, an option or a model file that cannot be served as it is; the text names the field and
    the file. It may have several problems.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(Kind.INVALID_ARGUMENT, "; ".join(problems))
        self.problems = problems


@contextmanager
def told_together() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Goes on after a `ConfigError` in a part, and raises one with the problems of all parts at the end.

    `with told_together() as part:`, and in it `with part():` around each step that others do not depend on.
    """
    problems: list[str] = []

    @contextmanager
    def part() -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            problems.extend(error.problems)

    with part():
        yield part
    if problems:
        raise ConfigError(*problems)


class LaterError(HeadraceError):
    """Something that Triton has and Headrace does not serve yet; the text names it."""

    def __init__(self, what: str) -> None:
        super().__init__(Kind.UNSUPPORTED, f"{what} is not served yet")
