"""The admin verbs over gRPC: request message in, response message out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.control.verbs import Verbs
from headrace.core.errors import LaterError
from headrace.core.messages import RPCS, parse


def answer_rpc(verbs: Verbs, rpc: str, payload: bytes, local: bool) -> bytes:
    """The serialised response of an RPC.

    Raises:
        HeadraceError: what the verb raises; UNSUPPORTED, naming it, for an RPC that is not served yet.
    """
    handler = _HANDLERS.get(rpc)
    if handler is None:
        raise LaterError(rpc)
    request_class, response_class = RPCS[rpc]
    response = handler(verbs, parse(request_class, payload), local)
    return bytes((response if response is not None else response_class()).SerializeToString())


def _model_ready(verbs: Verbs, request: Any, _local: bool) -> Any:
    return RPCS["ModelReady"][1](ready=verbs.model_ready(request.name, request.version))


def _region_status(verbs: Verbs, request: Any, _local: bool) -> Any:
    response = RPCS["SystemSharedMemoryStatus"][1]()
    for region in verbs.region_status(request.name):
        status = response.regions[region.name]
        status.name, status.key = region.name, region.key
        status.offset, status.byte_size = region.offset, region.byte_size
        status.pinned, status.unpinned_reason, status.leases = not region.unpinned, region.unpinned, region.leases
    return response


def _device_region_status(verbs: Verbs, request: Any, _local: bool) -> Any:
    response = RPCS["CudaSharedMemoryStatus"][1]()
    for region in verbs.device_region_status(request.name):
        status = response.regions[region.name]
        status.name, status.device_id, status.byte_size = region.name, region.device, region.byte_size
        status.leases = region.leases
    return response


_HANDLERS: dict[str, Callable[[Verbs, Any, bool], Any]] = {
    "ServerMetadata": lambda verbs, _request, _local: verbs.server_metadata(),
    "ModelReady": _model_ready,
    "ModelMetadata": lambda verbs, request, _local: verbs.model_metadata(request.name, request.version),
    "ModelConfig": lambda verbs, request, _local: verbs.model_config(request.name, request.version),
    "ModelStatistics": lambda verbs, request, _local: verbs.model_statistics(request.name, request.version),
    "RepositoryIndex": lambda verbs, request, _local: verbs.repository_index(request.repository_name, request.ready),
    "SystemSharedMemoryStatus": _region_status,
    "SystemSharedMemoryRegister": lambda verbs, request, local: verbs.register_region(
        request.name, request.key, request.offset, request.byte_size, local
    ),
    "SystemSharedMemoryUnregister": lambda verbs, request, local: verbs.unregister_region(request.name, local),
    "CudaSharedMemoryStatus": _device_region_status,
    "CudaSharedMemoryRegister": lambda verbs, request, local: verbs.register_device_region(
        request.name, request.raw_handle, request.device_id, request.byte_size, local
    ),
    "CudaSharedMemoryUnregister": lambda verbs, request, local: verbs.unregister_device_region(request.name, local),
}


def verbs() -> frozenset[str]:
    """The verbs that are answered over gRPC."""
    return frozenset(_HANDLERS)
