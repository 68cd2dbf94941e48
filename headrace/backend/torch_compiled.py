"""PyTorch programs compiled by Inductor, for GPUs (parameter `compile`): slow to load, faster to run.

Inductor writes kernels for one set of input shapes. They are kept on disk, so that a later start needs less than the
first: in `TORCHINDUCTOR_CACHE_DIR` where that is set, otherwise in `headrace/inductor` of the user's cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SHAPES = 16
"""Input shapes that a compiled program is kept for; the one that was not used for longest goes first."""
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class CompiledProgram:
    """Takes tensors by position; compiles when their shapes are new, which takes most of a minute for a detector."""

    def __init__(self, torch: Any, module: Any, is_script: bool) -> None:
        use_cache(os.environ)
        self._torch = torch
        self._module = module
        self._is_script = is_script
        self._compiled: dict[Any, Any] = {}

    def __call__(self, *tensors: Any) -> Any:
        """The program's outputs."""
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        compiled = self._compiled.pop(key, None)
        if compiled is None:  # not `or`: a module's truth is its length, and it has none
            compiled = self._compile(tensors)
        self._compiled[key] = compiled
        if len(self._compiled) > _SHAPES:
            self._compiled.pop(next(iter(self._compiled)))
        return compiled(*tensors)

    def _compile(self, tensors: Sequence[Any]) -> Any:
        module = self._operators(tensors) if self._is_script else self._module
        # Freezing makes the weights constants of the kernels: 7 % on the founding report's detector.
        return self._torch.compile(module, fullgraph=True, dynamic=False, options={"freezing": True})

    def _operators(self, tensors: Sequence[Any]) -> Any:
        """The graph of operators that TorchScript runs, which Inductor can read; TorchScript itself it cannot."""
        from torch.fx.experimental.proxy_tensor import make_fx

        with self._torch.no_grad(), _interpreted(self._torch):
            return make_fx(lambda *inputs: self._module(*inputs))(*tensors)


def use_cache(environment: Any) -> None:
    """Names a folder of the user's for what Inductor keeps; its own default is the folder for temporary files."""
    if _CACHE not in environment:
        home = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        environment[_CACHE] = str(home / "headrace" / "inductor")


@contextmanager
def _interpreted(torch: Any) -> Iterator[None]:
    """TorchScript runs operator by operator: a trace would not see what its executor fuses."""
    switches = torch._C
    executor, mode = switches._jit_set_profiling_executor(False), switches._jit_set_profiling_mode(False)
    fuser = switches._jit_texpr_fuser_enabled()
    switches._jit_set_texpr_fuser_enabled(False)
    try:
        with torch.jit.optimized_execution(False):
            yield
    finally:
        switches._jit_set_profiling_executor(executor)
        switches._jit_set_profiling_mode(mode)
        switches._jit_set_texpr_fuser_enabled(fuser)
