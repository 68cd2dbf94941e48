"""The built-in backend `identity`: the first output is the first input. It has no model file.

For trying clients and for measuring everything but a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.backend.base import DeviceInstance, Inputs, ModelFile, Produced
from headrace.config.model import ModelSignature, ModelSpec
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning


class IdentityModel:
    """Forwards input 0 to output 0."""

    signature: ModelSignature | None = None
    forwards: Mapping[int, int] = {0: 0}

    def start_instance(self, spec: ModelSpec, threads: int) -> IdentityModel:  # noqa: ARG002 - nothing to divide
        """Instances share all: there is no state."""
        if len(spec.inputs) != 1 or len(spec.outputs) != 1:
            raise ConfigError(f"identity has one input and one output, got {len(spec.inputs)} and {len(spec.outputs)}")
        source, result = spec.inputs[0], spec.outputs[0]
        if (source.dtype, source.backend_dims) != (result.dtype, result.backend_dims):
            raise ConfigError(
                f"identity needs equal type and dims: input '{source.name}' has {source.dtype.config_name} "
                f"{list(source.backend_dims)}, output '{result.name}' has {result.dtype.config_name} "
                f"{list(result.backend_dims)}"
            )
        return self

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:  # noqa: ARG002
        """Not yet."""
        raise ConfigError(f"backend 'identity' is not served on a GPU yet (instance_group KIND_GPU of '{spec.name}')")

    def output_shapes(self, inputs: Inputs) -> Sequence[Shape | None]:
        """The input's."""
        return [None if reference is None else reference.shape for reference in inputs]

    def run(
        self,
        inputs: Inputs,  # noqa: ARG002
        outputs: Mapping[int, TensorRef | None],  # noqa: ARG002
    ) -> Mapping[int, Produced]:
        """Never called: everything is forwarded."""
        raise AssertionError("identity forwards its input")


def load(file: ModelFile) -> IdentityModel:  # noqa: ARG001 - there is no file
    """The model, ready at once."""
    return IdentityModel()
