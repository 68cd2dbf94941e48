"""The model repositories of both servers for GPU benchmarks: the detector, and a model that only slices."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPORT = """
max_batch_size: 32
input { name: "images" data_type: TYPE_FP16 dims: 3 dims: 384 dims: 640 }
output { name: "output0" data_type: TYPE_FP16 dims: 84 dims: 5040 }
dynamic_batching { preferred_batch_size: 32 }
"""
INSTANCES = "instance_group {{ count: {count} kind: KIND_GPU }}\n"
CHANNELS_LAST = 'parameters { key: "channels_last" value { string_value: "true" } }\n'

TRITON_DETECTOR = '''
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


class TritonPythonModel:
    """The same module in a CUDA graph of 32, as a careful user of Triton's Python backend would write it."""

    def initialize(self, args):
        self.module = torch.jit.load("DETECTOR", map_location="cuda").half().eval()
        self.module = self.module.to(memory_format=torch.channels_last)
        self.images = torch.zeros(32, 3, 384, 640, dtype=torch.half, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.inference_mode():
            for _ in range(3):
                self.call()
            stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self.outputs = self.call()

    def call(self):
        return self.module(self.images.contiguous(memory_format=torch.channels_last)).half().contiguous()

    def execute(self, requests):
        for row, request in enumerate(requests):
            tensor = pb_utils.get_input_tensor_by_name(request, "images")
            self.images[row : row + 1].copy_(from_dlpack(tensor.to_dlpack()), non_blocking=True)
        self.graph.replay()
        torch.cuda.synchronize()
        rows = [self.outputs[row : row + 1] for row in range(len(requests))]
        tensors = [pb_utils.Tensor.from_dlpack("output0", to_dlpack(row)) for row in rows]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
'''


COMPILED = """parameters { key: "compile" value { string_value: "true" } }
parameters { key: "cuda_graph_batch_sizes" value { string_value: "32" } }
"""

ECHO = """
backend: "identity"
max_batch_size: 32
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
dynamic_batching {}
"""


def write_headrace(root: Path, detector: Path, torch: Any, names: list[str], instances: int) -> Path:
    """The detector and the slicing model, as TorchScript; those of them that are asked for. And an echo, as a floor."""

    class Slice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - TorchScript reads this
            return x.reshape(-1, 144, 5120)[:, :84, :5040]

    shutil.rmtree(root, ignore_errors=True)
    config = f'platform: "pytorch_libtorch"\n{REPORT}{INSTANCES.format(count=instances)}'
    for name in names:
        (root / name / "1").mkdir(parents=True)
    if "yolo" in names:
        shutil.copy(detector, root / "yolo" / "1" / "model.pt")
        (root / "yolo" / "config.pbtxt").write_text(config + CHANNELS_LAST)
    if "yolo_compiled" in names:
        shutil.copy(detector, root / "yolo_compiled" / "1" / "model.pt")
        (root / "yolo_compiled" / "config.pbtxt").write_text(config + CHANNELS_LAST + COMPILED)
    if "slice" in names:
        torch.jit.trace(Slice(), torch.zeros(1, 3, 384, 640)).save(str(root / "slice" / "1" / "model.pt"))
        (root / "slice" / "config.pbtxt").write_text(config)
    if "echo" in names:
        (root / "echo" / "config.pbtxt").write_text(ECHO)
    return root


def write_onnx(root: Path, detector: Path, options: Mapping[str, str], instances: int, sizes: str) -> Path:
    """The detector as ONNX, with these options of ONNX Runtime's CUDA provider."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "yolo" / "1").mkdir(parents=True)
    (root / "yolo" / "1" / "model.onnx").symlink_to(detector.absolute())
    given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in options.items())
    accelerator = f'gpu_execution_accelerator {{ name: "cuda" {given} }}'
    config = (
        f"{REPORT}{INSTANCES.format(count=instances)}optimization {{ execution_accelerators {{ {accelerator} }} }}\n"
    )
    if sizes:
        config += f'parameters {{ key: "cuda_graph_batch_sizes" value {{ string_value: "{sizes}" }} }}\n'
    (root / "yolo" / "config.pbtxt").write_text(config)
    return root


def write_triton(root: Path, detector: Path) -> Path:
    """The detector as a Python model."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "yolo" / "1").mkdir(parents=True)
    (root / "yolo" / "1" / "model.py").write_text(TRITON_DETECTOR.replace("DETECTOR", str(detector.absolute())))
    cpu_input = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
    (root / "yolo" / "config.pbtxt").write_text(f'backend: "python"\n{REPORT}{INSTANCES.format(count=2)}{cpu_input}')
    return root
