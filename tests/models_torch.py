"""PyTorch models for tests, and how they are written. Imports PyTorch: only tests that need it import this."""

from __future__ import annotations

from pathlib import Path

import torch

from tests import models


class Affine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


class Slice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 144, 5120)[:, :84, :5040]


class Two(torch.nn.Module):
    """Difference and sum: their order shows."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left - right, left + right


class Named(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": left + right, "difference": left - right}


class Convolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.layer(x))


PLATFORM = 'platform: "pytorch_libtorch"\n'


def script(repository: Path, name: str, module: torch.nn.Module, config: str) -> None:
    """As TorchScript."""
    directory = models.write_config(repository, name, PLATFORM + config)
    torch.jit.script(module).save(str(directory / "model.pt"))


def export(repository: Path, name: str, module: torch.nn.Module, config: str, example: torch.Tensor) -> None:
    """As an exported program with a free batch dimension."""
    directory = models.write_config(repository, name, PLATFORM + config)
    dynamic = ({0: torch.export.Dim("batch", max=64)},)
    torch.export.save(
        torch.export.export(module.eval(), (example,), dynamic_shapes=dynamic), str(directory / "model.pt2")
    )


def sides(inputs: dict[str, list[int]], outputs: dict[str, list[int]], max_batch: int, dtype: str = "FP32") -> str:
    """Config of tensors of one type."""
    rows = [("input", *row) for row in inputs.items()] + [("output", *row) for row in outputs.items()]
    tensors = "".join(
        f'{side} {{ name: "{name}" data_type: TYPE_{dtype} dims: {dims} }}\n' for side, name, dims in rows
    )
    return f"max_batch_size: {max_batch}\n{tensors}"
