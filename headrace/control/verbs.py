"""The admin verbs, without a protocol: plain arguments in, protocol messages out, `HeadraceError` for what is
wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.core.errors import HeadraceError, Kind
from headrace.core.messages import RPCS
from headrace.memory.regions import DeviceRegions, DeviceRegionStatus, RegionStatus, SystemRegions
from headrace.observe.statistics import statistics_message
from headrace.repository.lifecycle import Lifecycle, ServedVersion, State

EXTENSIONS = (
    "model_configuration",
    "model_repository",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
)
"""Extensions of the protocol that are served, for the server's metadata."""


_VERSION_DIGITS = 18
"""Of a number that surely fits 64 bits."""


class Verbs:
    """All verbs of one server."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        regions: SystemRegions,
        device_regions: DeviceRegions,
        metrics: Callable[[], bytes],
        name: str,
        version: str,
    ) -> None:
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._regions = regions
        self._device_regions = device_regions
        self._name = name
        self._version = version

    def server_metadata(self) -> Any:
        """`ServerMetadataResponse`."""
        return RPCS["ServerMetadata"][1](name=self._name, version=self._version, extensions=EXTENSIONS)

    def model_ready(self, model: str, version: str) -> bool:
        """Whether the version, or any for the empty string, is ready.

        Raises:
            HeadraceError: NOT_FOUND for an unknown model or version.
        """
        versions = self._versions(model)
        if not version:
            return any(_serves(served) for served in versions.values())
        return _serves(self._numbered(model, version, versions))

    def model_metadata(self, model: str, version: str) -> Any:
        """`ModelMetadataResponse`."""
        spec = self._ready(model, version).spec
        if spec is None:
            raise self._not_ready(model, version)
        ready = [number for number, served in self._versions(model).items() if served.state is State.READY]
        config = spec.message
        response = RPCS["ModelMetadata"][1](
            name=model,
            versions=[str(number) for number in sorted(ready)],
            platform=config.platform or config.backend,
        )
        batch = [-1] if spec.max_batch_size > 0 else []
        for described, tensors in ((response.inputs, spec.inputs), (response.outputs, spec.outputs)):
            for tensor in tensors:
                described.add(name=tensor.name, datatype=tensor.dtype.name, shape=[*batch, *tensor.dims])
        return response

    def model_config(self, model: str, version: str) -> Any:
        """`ModelConfigResponse`: the config as completed."""
        spec = self._ready(model, version).spec
        return RPCS["ModelConfig"][1](config=spec.message if spec is not None else None)

    def model_statistics(self, model: str, version: str) -> Any:
        """`ModelStatisticsResponse` of one version, of all of a model, or of everything that is ready.

        Raises:
            HeadraceError: INVALID_ARGUMENT for a model or version that is not ready.
        """
        chosen = self._measured(model, version) if model else self._lifecycle.versions()
        response = RPCS["ModelStatistics"][1]()
        for served in chosen:
            if served.intake is not None:
                response.model_stats.append(statistics_message(served.name, served.version, served.intake.statistics()))
        return response

    def _measured(self, model: str, version: str) -> list[ServedVersion]:
        ready = [served for served in (self._lifecycle.find(model) or {}).values() if served.state is State.READY]
        if not ready:
            raise HeadraceError(Kind.INVALID_ARGUMENT, f"requested model '{model}' is not available")
        if not version:
            return ready
        if not (version.isascii() and version.isdecimal() and len(version) <= _VERSION_DIGITS):
            raise HeadraceError(
                Kind.INVALID_ARGUMENT,
                f"invalid model version specified '{version}', version should be an integral value > 0",
            )
        chosen = [served for served in ready if served.version == int(version)]
        if not chosen:
            there = ", ".join(str(served.version) for served in ready)
            raise HeadraceError(
                Kind.INVALID_ARGUMENT,
                f"requested model version is not available for model '{model}': {version} is not, {there} is",
            )
        return chosen

    def repository_index(self, repository: str, ready: bool) -> Any:
        """`RepositoryIndexResponse`: all known versions, or only the ready ones."""
        if repository:
            raise HeadraceError(Kind.UNSUPPORTED, "'repository_name' specification is not supported")
        response = RPCS["RepositoryIndex"][1]()
        for served in self._lifecycle.versions():
            if not ready or served.state is State.READY:
                response.models.add(
                    name=served.name, version=str(served.version), state=served.state, reason=served.reason
                )
        return response

    def register_region(self, name: str, key: str, offset: int, byte_size: int, local: bool) -> None:
        """Registers a system shared-memory region."""
        self._regions.register(name, key, offset, byte_size, local)

    def unregister_region(self, name: str, local: bool) -> None:
        """Forgets a region, or all with an empty name."""
        self._regions.unregister(name, local)

    def region_status(self, name: str) -> list[RegionStatus]:
        """One region, or all with an empty name."""
        return self._regions.status(name)

    def register_device_region(self, name: str, handle: bytes, device: int, byte_size: int, local: bool) -> None:
        """Registers a CUDA shared-memory region."""
        self._device_regions.register(name, handle, device, byte_size, local)

    def unregister_device_region(self, name: str, local: bool) -> None:
        """Forgets a CUDA region, or all with an empty name."""
        self._device_regions.unregister(name, local)

    def device_region_status(self, name: str) -> list[DeviceRegionStatus]:
        """One CUDA region, or all with an empty name."""
        return self._device_regions.status(name)

    def metrics(self) -> bytes:
        """The metrics page."""
        return self._metrics()

    def _versions(self, model: str) -> dict[int, ServedVersion]:
        versions = self._lifecycle.find(model)
        if versions is None:
            raise HeadraceError(Kind.NOT_FOUND, f"Request for unknown model: '{model}' is not found")
        return versions

    def _numbered(self, model: str, version: str, versions: dict[int, ServedVersion]) -> ServedVersion:
        try:
            number = int(version)
        except ValueError:
            raise HeadraceError(
                Kind.INVALID_ARGUMENT,
                f"unable to parse/determine model version for '{model}': '{version}' is not an integer",
            ) from None
        if number not in versions:
            raise HeadraceError(Kind.NOT_FOUND, f"Request for unknown model: '{model}' version {number} is not found")
        return versions[number]

    def _ready(self, model: str, version: str) -> ServedVersion:
        versions = self._versions(model)
        if version:
            served = self._numbered(model, version, versions)
            if served.state is not State.READY:
                raise self._not_ready(model, version)
            return served
        ready = [served for served in versions.values() if served.state is State.READY]
        if not ready:
            raise HeadraceError(Kind.NOT_FOUND, f"Request for unknown model: '{model}' has no available versions")
        return max(ready, key=lambda served: served.version)

    def _not_ready(self, model: str, version: str) -> HeadraceError:
        return HeadraceError(
            Kind.UNAVAILABLE, f"Request for unknown model: '{model}' version {version} is not at ready state"
        )


def _serves(served: ServedVersion) -> bool:
    """Ready, with no instance that is being started again."""
    return served.state is State.READY and (served.intake is None or served.intake.ailing() is None)
