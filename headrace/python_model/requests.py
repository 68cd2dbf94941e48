"""`InferenceRequest` and `InferenceResponse` of `pb_utils`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .errors import TritonError, TritonModelException
from .tensors import Tensor

_KNOWN = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")
SEQUENCE_START, SEQUENCE_END = 1, 2
_LATER = "is not served yet: models cannot call other models, and answer each request once, when execute returns"


class InferenceRequest:
    """One request of a batch."""

    __slots__ = ("_cancelled", "_given", "_id", "_inputs", "_outputs", "_parameters")
    _cancelled: Callable[[], bool]
    _given: str
    _id: str
    _inputs: list[Tensor]
    _outputs: list[str]
    _parameters: dict[str, Any] | None

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        raise TritonModelException(f"InferenceRequest of one's own {_LATER}")

    @classmethod
    def of_client(
        cls, ident: str, parameters: str, inputs: list[Tensor], outputs: list[str], cancelled: Callable[[], bool]
    ) -> InferenceRequest:
        """What a client asked; `parameters` is a JSON object or empty."""
        request = cls.__new__(cls)
        request._id, request._inputs, request._outputs = ident, inputs, outputs
        request._given, request._parameters, request._cancelled = parameters, None, cancelled
        return request

    def inputs(self) -> list[Tensor]:
        """Its inputs."""
        return self._inputs

    def request_id(self) -> str:
        """The client's id; empty when there is none."""
        return self._id

    def requested_output_names(self) -> list[str]:
        """Names of the outputs that the client wants."""
        return self._outputs

    def correlation_id(self) -> int | str:
        """Of its sequence; 0 when it belongs to none."""
        value: int | str = self._all().get("sequence_id", 0)
        return value

    def flags(self) -> int:
        """`TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`."""
        given = self._all()
        return SEQUENCE_START * bool(given.get("sequence_start")) | SEQUENCE_END * bool(given.get("sequence_end"))

    def timeout(self) -> int:
        """The client's timeout in microseconds; 0 when there is none."""
        return int(self._all().get("timeout", 0))

    def parameters(self) -> str:
        """The client's own parameters as JSON; empty when there are none."""
        own = {key: value for key, value in self._all().items() if key not in _KNOWN}
        return json.dumps(own, separators=(",", ":")) if own else ""

    def is_cancelled(self) -> bool:
        """Whether the client does not wait for the answer any more. Asks the server."""
        return self._cancelled()

    def trace(self) -> InferenceTrace:
        """Its trace."""
        return InferenceTrace()

    def get_response_sender(self) -> Any:
        """Not served yet."""
        raise TritonModelException(f"get_response_sender {_LATER}")

    def exec(self, *_arguments: Any, **_options: Any) -> Any:
        """Not served yet."""
        raise TritonModelException(f"exec {_LATER}")

    async_exec = exec

    def _all(self) -> dict[str, Any]:
        if self._parameters is None:
            self._parameters = json.loads(self._given) if self._given else {}
        return self._parameters


class InferenceTrace:
    """A request's trace."""

    def get_context(self) -> str | None:
        """OpenTelemetry's context; there is none."""
        return None


class InferenceResponse:
    """The answer to one request: outputs, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None, parameters: Any = None
    ) -> None:
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"output_tensors must be Tensor objects, got {type(tensor).__name__}")
        if isinstance(error, str):
            error = TritonError(error)
        self._tensors = list(output_tensors)
        self._error = error
        self._parameters = parameters

    def output_tensors(self) -> list[Tensor]:
        """Its outputs."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, if it is one."""
        return self._error

    def parameters(self) -> str:
        """Its parameters as JSON. Clients do not get them yet."""
        return json.dumps(self._parameters) if self._parameters else ""


def find(tensors: Iterable[Tensor], name: str) -> Tensor | None:
    """The tensor of this name."""
    return next((tensor for tensor in tensors if tensor.name() == name), None)
