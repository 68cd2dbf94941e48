"""Errors of a real GPU: no memory at load and in a batch, and a kernel that fails, which spoils the context."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests import models
from tests.doors.asking import ask
from tests.servers import start_headrace

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

GIB = 1 << 30
GPU = 'platform: "pytorch_libtorch" instance_group { kind: KIND_GPU }\n'
EAGER = 'parameters { key: "cuda_graphs" value { string_value: "false" } }\n'


class Hungry(torch.nn.Module):
    """Needs a GiB for each unit of its input's second dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros([x.size(1), 1 << 28], dtype=torch.float32, device=x.device).sum() * 0


class Greedy(torch.nn.Module):
    """Needs more than a GPU has, for any input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros([1 << 42], dtype=torch.uint8, device=x.device).sum() * 0


class Pick(torch.nn.Module):
    """An index out of range fails in the kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(8.0, device=x.device).index_select(0, x.long().flatten()).reshape(x.shape)


def write(repository: Path, name: str, module: torch.nn.Module, config: str) -> None:
    directory = models.write_config(repository, name, config)
    torch.jit.script(module).save(str(directory / "model.pt"))


def free_bytes() -> int:
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def test_no_memory_at_load_and_in_a_batch(tmp_path) -> None:
    before = free_bytes()
    write(tmp_path / "models", "greedy", Greedy(), GPU + models.io_config("FP32", [4], 8, ""))
    write(tmp_path / "models", "hungry", Hungry(), GPU + EAGER + models.io_config("FP32", [-1], 8, ""))
    server = start_headrace(tmp_path / "models", tmp_path / "log", "--strict-readiness=false")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        reasons = {row.name: row.reason for row in client.get_model_repository_index().models}
        assert "out of memory" in reasons["greedy"].lower()
        assert reasons["hungry"] == ""
        small = np.ones((1, 1), np.float32)
        for _ in range(3):
            np.testing.assert_array_equal(ask(client, "hungry", small)[0].result(60), small)
            with pytest.raises(InferenceServerException, match="out of memory"):
                ask(client, "hungry", np.ones((1, 400), np.float32))[0].result(60)
    assert server.stop() == 0
    assert free_bytes() >= before - GIB // 8


def test_a_kernel_that_fails_takes_the_gpu_out_of_service(tmp_path) -> None:
    before = free_bytes()
    write(tmp_path / "models", "pick", Pick(), GPU + models.io_config("FP32", [4], 8, ""))
    write(tmp_path / "models", "other", Pick(), GPU + models.io_config("FP32", [4], 8, ""))
    models.identity(tmp_path / "models", "echo", "FP32", [4])
    server = start_headrace(tmp_path / "models", tmp_path / "log")
    good, bad = np.array([[1, 2, 3, 0]], np.float32), np.array([[1, 2, 1000, 0]], np.float32)
    with grpcclient.InferenceServerClient(server.grpc) as client:
        np.testing.assert_array_equal(ask(client, "pick", good)[0].result(60), good)
        with pytest.raises(InferenceServerException, match=r"cudaErrorAssert|device-side assert"):
            ask(client, "pick", bad)[0].result(60)
        for name in ("pick", "other"):
            with pytest.raises(InferenceServerException):
                ask(client, name, good)[0].result(60)
        np.testing.assert_array_equal(ask(client, "echo", good)[0].result(60), good)
        assert not client.is_server_ready()
        reasons = {row.name: row.reason for row in client.get_model_repository_index().models}
        assert "lost its last device" in reasons["pick"]
        assert reasons["echo"] == ""
    server.stop()
    assert free_bytes() >= before - GIB // 8
