"""The calls of Triton's protocol, and which of them are served: by the wire alone, or by a handler of each door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.control import grpc, http

OF_THE_WIRE = frozenset({"ServerLive", "ServerReady", "ModelInfer"})
"""Calls that Python never sees."""


@dataclass(frozen=True)
class Endpoint:
    """One call."""

    verb: str
    """Its RPC; for what is there over HTTP only, a name of our own."""
    paths: tuple[str, ...] = ()
    """Method and path over HTTP. `M` is a model, `V` a version, `R` a region; what is in brackets may be missing."""
    over_grpc: bool = True

    def is_served(self) -> bool:
        """Over each door that has it."""
        handled = (not self.paths or self.verb in http.verbs()) and (not self.over_grpc or self.verb in grpc.verbs())
        return self.verb in OF_THE_WIRE or handled


def _region(kind: str, verb: str) -> tuple[str, ...]:
    if verb == "status":
        return (f"GET /v2/{kind}sharedmemory[/region/R]/status",)
    if verb == "register":
        return (f"POST /v2/{kind}sharedmemory/region/R/register",)
    return (f"POST /v2/{kind}sharedmemory[/region/R]/unregister",)


ENDPOINTS: Sequence[Endpoint] = (
    Endpoint("ServerLive", ("GET /v2/health/live",)),
    Endpoint("ServerReady", ("GET /v2/health/ready",)),
    Endpoint("ModelReady", ("GET /v2/models/M[/versions/V]/ready",)),
    Endpoint("ServerMetadata", ("GET /v2",)),
    Endpoint("ModelMetadata", ("GET /v2/models/M[/versions/V]",)),
    Endpoint("ModelConfig", ("GET /v2/models/M[/versions/V]/config",)),
    Endpoint("ModelStatistics", ("GET /v2/models/M[/versions/V]/stats", "GET /v2/models/stats")),
    Endpoint("ModelInfer", ("POST /v2/models/M[/versions/V]/infer",)),
    Endpoint("ModelStreamInfer"),
    Endpoint(
        "Generate",
        ("POST /v2/models/M[/versions/V]/generate", "POST /v2/models/M[/versions/V]/generate_stream"),
        over_grpc=False,
    ),
    Endpoint("RepositoryIndex", ("POST /v2/repository/index",)),
    Endpoint("RepositoryModelLoad", ("POST /v2/repository/models/M/load",)),
    Endpoint("RepositoryModelUnload", ("POST /v2/repository/models/M/unload",)),
    Endpoint("SystemSharedMemoryStatus", _region("system", "status")),
    Endpoint("SystemSharedMemoryRegister", _region("system", "register")),
    Endpoint("SystemSharedMemoryUnregister", _region("system", "unregister")),
    Endpoint("CudaSharedMemoryStatus", _region("cuda", "status")),
    Endpoint("CudaSharedMemoryRegister", _region("cuda", "register")),
    Endpoint("CudaSharedMemoryUnregister", _region("cuda", "unregister")),
    Endpoint(
        "TraceSetting",
        (
            "GET /v2/trace/setting",
            "POST /v2/trace/setting",
            "GET /v2/models/M/trace/setting",
            "POST /v2/models/M/trace/setting",
        ),
    ),
    Endpoint("LogSettings", ("GET /v2/logging", "POST /v2/logging")),
)
"""All of them."""
