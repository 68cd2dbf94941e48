"""The admin verbs over HTTP: the path's subject and JSON in, JSON out."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from headrace.control.verbs import Verbs
from headrace.core.errors import HeadraceError, Kind, LaterError
from headrace.core.messages import to_json
from headrace.core.wire import Call


def answer_http(verbs: Verbs, call: Call) -> bytes:
    """The body of the answer; empty where Triton's is empty.

    Raises:
        HeadraceError: what the verb raises; UNSUPPORTED, naming it, for a verb that is not served yet.
    """
    handler = _HANDLERS.get(call.verb)
    if handler is None:
        raise LaterError(call.verb)
    answer = handler(verbs, call)
    return b"" if answer is None else json.dumps(answer, separators=(",", ":")).encode()


def _body(call: Call) -> dict[str, Any]:
    if not call.payload.strip():
        return {}
    try:
        body = json.loads(call.payload)
    except (ValueError, RecursionError) as error:
        raise HeadraceError(Kind.INVALID_ARGUMENT, f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(body, dict):
        raise HeadraceError(
            Kind.INVALID_ARGUMENT,
            f"failed to parse the request JSON buffer: expected an object, got {type(body).__name__}",
        )
    return body


def _member(body: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = body.get(name, default)
    if value is None:
        raise HeadraceError(Kind.INVALID_ARGUMENT, f"expected '{name}' in the request JSON")
    wrong_type = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
    if wrong_type or (kind is int and not 0 <= value < 1 << 64):
        expected = "an unsigned 64-bit integer" if kind is int else f"a {kind.__name__}"
        raise HeadraceError(Kind.INVALID_ARGUMENT, f"'{name}' must be {expected}, got {value!r}")
    return value


def _model_ready(verbs: Verbs, call: Call) -> None:
    if not verbs.model_ready(call.model, call.version):
        raise HeadraceError(Kind.INVALID_ARGUMENT, f"model '{call.model}' is not ready")


def _index(verbs: Verbs, call: Call) -> Any:
    ready = _member(_body(call), "ready", bool, default=False)
    rows = [to_json(model) for model in verbs.repository_index("", ready).models]
    return [{name: value for name, value in row.items() if value != ""} for row in rows]


def _register(verbs: Verbs, call: Call) -> None:
    body = _body(call)
    key = _member(body, "key", str)
    offset, byte_size = _member(body, "offset", int, default=0), _member(body, "byte_size", int)
    verbs.register_region(call.region, key, offset, byte_size, call.local)


def _status(verbs: Verbs, call: Call) -> Any:
    return [
        {
            "name": region.name,
            "key": region.key,
            "offset": region.offset,
            "byte_size": region.byte_size,
            "pinned": not region.unpinned,
            "unpinned_reason": region.unpinned,
            "leases": region.leases,
        }
        for region in verbs.region_status(call.region)
    ]


def _register_device(verbs: Verbs, call: Call) -> None:
    body = _body(call)
    handle = _member(_member(body, "raw_handle", dict), "b64", str)
    try:
        raw = base64.b64decode(handle, validate=True)
    except ValueError as error:
        raise HeadraceError(Kind.INVALID_ARGUMENT, f"'raw_handle.b64' is no base64: {error}") from error
    device, byte_size = _member(body, "device_id", int), _member(body, "byte_size", int)
    verbs.register_device_region(call.region, raw, device, byte_size, call.local)


def _device_status(verbs: Verbs, call: Call) -> Any:
    return [
        {
            "name": region.name,
            "device_id": region.device,
            "byte_size": region.byte_size,
            "leases": region.leases,
        }
        for region in verbs.device_region_status(call.region)
    ]


_HANDLERS: dict[str, Callable[[Verbs, Call], Any]] = {
    "ServerMetadata": lambda verbs, _call: to_json(verbs.server_metadata()),
    "ModelReady": _model_ready,
    "ModelMetadata": lambda verbs, call: to_json(verbs.model_metadata(call.model, call.version)),
    "ModelConfig": lambda verbs, call: to_json(verbs.model_config(call.model, call.version).config),
    "ModelStatistics": lambda verbs, call: to_json(verbs.model_statistics(call.model, call.version)),
    "RepositoryIndex": _index,
    "SystemSharedMemoryStatus": _status,
    "SystemSharedMemoryRegister": _register,
    "SystemSharedMemoryUnregister": lambda verbs, call: verbs.unregister_region(call.region, call.local),
    "CudaSharedMemoryStatus": _device_status,
    "CudaSharedMemoryRegister": _register_device,
    "CudaSharedMemoryUnregister": lambda verbs, call: verbs.unregister_device_region(call.region, call.local),
}


def verbs() -> frozenset[str]:
    """The verbs that are answered over HTTP."""
    return frozenset(_HANDLERS)
