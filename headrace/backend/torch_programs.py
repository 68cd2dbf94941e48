"""What a PyTorch model file holds, opened for one device.

`model.pt` is TorchScript, `model.pt2` an exported program (`torch.export.save`). Neither runs operator by operator in
Python when it serves: TorchScript is compiled, an exported program is captured in a CUDA graph, or traced on the CPU.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.backend.torch_compiled import CompiledProgram
from headrace.core.errors import ConfigError

_TRACES = 8
"""Input shapes that a traced program is kept for; the one that was not used for longest goes first."""


@dataclass(frozen=True)
class Program:
    """A model on a device."""

    arguments: tuple[str, ...]
    """Of `forward`, where the file tells; in order."""
    call: Callable[..., Any]
    """Takes tensors by position."""
    is_compiled: bool
    """It may be called for every batch."""


@dataclass(frozen=True)
class Layout:
    """How a program is made ready; an exported one has decided whether its weights are half."""

    half: bool
    channels_last: bool
    compiled: bool = False
    """By Inductor; on GPUs only."""


def open_program(torch: Any, path: Path, device: str, layout: Layout) -> Program:
    """Opens a file for `device` ("cpu", "cuda:1").

    Raises:
        ConfigError: when PyTorch cannot.
    """
    if path.suffix == ".pt2" and _is_package(path):
        raise ConfigError(f"{path} is a package that AOTInductor compiled, which is not served; export the program")
    opened = _open_exported if path.suffix == ".pt2" else _open_script
    try:
        return opened(torch, path, device, layout)
    except Exception as error:
        raise ConfigError(f"{path}: PyTorch cannot load it for {device}: {error}") from error


def _open_script(torch: Any, path: Path, device: str, layout: Layout) -> Program:
    module = torch.jit.load(str(path), map_location=device).eval()
    arguments = tuple(argument.name for argument in module.forward.schema.arguments[1:])
    module = module.half() if layout.half else module
    module = module.to(memory_format=torch.channels_last) if layout.channels_last else module
    if layout.compiled:
        return Program(arguments, CompiledProgram(torch, module, is_script=True), is_compiled=True)
    return Program(arguments, module, is_compiled=True)


def _open_exported(torch: Any, path: Path, device: str, layout: Layout) -> Program:
    from torch.export.passes import move_to_device_pass

    exported = torch.export.load(str(path))
    arguments = tuple(exported.graph_signature.user_inputs)
    if device == "cpu":
        return Program(arguments, _Traced(torch, exported.module()), is_compiled=True)
    exported = move_to_device_pass(exported, device)
    module = exported.module()
    module = module.to(memory_format=torch.channels_last) if layout.channels_last else module
    if layout.compiled:
        return Program(arguments, CompiledProgram(torch, module, is_script=False), is_compiled=True)
    return Program(arguments, module, is_compiled=False)


def _is_package(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("aotinductor" in name for name in archive.namelist())


class _Traced:
    """An exported program on the CPU, traced into TorchScript once for each shape of its inputs."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self._module = module
        self._traces: dict[Any, Any] = {}

    def __call__(self, *tensors: Any) -> Any:
        """The program's outputs."""
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        trace = self._traces.pop(key, None) or self._trace(tensors)
        self._traces[key] = trace
        if len(self._traces) > _TRACES:
            self._traces.pop(next(iter(self._traces)))
        return trace(*tensors)

    def _trace(self, tensors: Sequence[Any]) -> Any:
        with self._torch.no_grad():
            return self._torch.jit.trace(self._module, tuple(tensors), check_trace=False, strict=False)
