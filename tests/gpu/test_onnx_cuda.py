"""ONNX models on a GPU through the doors: with ONNX Runtime's CUDA provider where there is one, and everywhere with a
double of it on a device in host memory (`tests/onnx_double.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import shared_memory as shm

from headrace.config.pbtxt import ConfigRules
from headrace.core.wire import Wire
from headrace.memory.cuda import find_devices
from headrace.memory.pinning import Pinning
from headrace.observe.logs import Log
from headrace.repository.lifecycle import Lifecycle
from headrace.repository.scan import scan
from tests import models
from tests.doors.asking import ask
from tests.doors.clients import region
from tests.metrics import read_metric
from tests.servers import RunningServer, start_headrace

DEVICES, _ = find_devices()
HAS_PROVIDER = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
NO_GPU = "" if DEVICES and HAS_PROVIDER else "there is no GPU, or no onnxruntime-gpu (CUDAExecutionProvider)"
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)]
DETECTOR = Path(os.environ.get("HEADRACE_SHARED", "../shared")) / "data" / "detector_fp16.onnx"
CYCLES = 50
GROUP = "instance_group { kind: KIND_GPU gpus: 0 }"
FALLBACKS = "headrace_transfer_fallback_total"
MIB = 1 << 20


def accelerator(**options: object) -> str:
    given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in options.items())
    return f'optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: "cuda" {given} }} }} }}'


WAYS = {
    "default": {},
    "plain": {"enable_cuda_graph": 0},
    "waiting": {"has_user_compute_stream": 0},
    "plain_waiting": {"enable_cuda_graph": 0, "has_user_compute_stream": 0},
    "nhwc": {"prefer_nhwc": 1},
}


def write_models(repository: Path) -> None:
    for way, options in WAYS.items():
        models.add_one(repository, way, f"max_batch_size: 8 dynamic_batching {{}} {GROUP} {accelerator(**options)}")
    models.add_any(repository, "any", f"max_batch_size: 8 dynamic_batching {{}} {GROUP}")
    models.nonzero(repository, "nonzero")
    (repository / "nonzero" / "config.pbtxt").write_text(GROUP)
    models.add_one(repository, "wrong", f"{GROUP} {accelerator(prefer_nwhc=1)}")


@pytest.fixture(scope="module", params=["double", pytest.param("cuda", marks=needs_gpu)])
def server(request, tmp_path_factory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    module = {"double": "tests.onnx_double", "cuda": "headrace"}[request.param]
    running = start_headrace(repository, tmp_path_factory.mktemp("log") / "server.log", module=module)
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture
def client(server: RunningServer):
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


@pytest.mark.parametrize("way", list(WAYS))
def test_batches_of_many_clients(client, server: RunningServer, way: str) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((1 + number % 8, 4), np.float32) for number in range(100)]
    futures = [ask(client, way, array)[0] for array in arrays]
    assert not wait(futures, timeout=60).not_done
    for array, future in zip(arrays, futures, strict=True):
        np.testing.assert_allclose(future.result(), array + 1, rtol=1e-6)
    stages = client.get_inference_statistics(way).model_stats[0].inference_stats
    assert stages.success.count == 100
    assert min(stages.compute_input.ns, stages.compute_infer.ns, stages.compute_output.ns) > 0
    for name in ("cuda_graph", "output_allocated_by_backend"):
        assert read_metric(server, FALLBACKS, model=way, name=name) == 0, server.log.read_text()


def test_shapes_that_the_config_leaves_open(client) -> None:
    for wide in [3, 1000, 3, 7, 50, 9, 1000]:
        array = np.random.default_rng(wide).standard_normal((3, wide), np.float32)
        np.testing.assert_allclose(ask(client, "any", array)[0].result(60), array + 1, rtol=1e-6)


def test_the_cpu_copies_nothing_of_a_page_locked_region(client, server: RunningServer) -> None:
    copied = "headrace_transfer_copied_bytes_total"
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    with region(client, 4096) as (name, handle):
        shm.set_shared_memory_region(handle, [array])
        tensor = grpcclient.InferInput("INPUT0", [2, 4], "FP32")
        tensor.set_shared_memory(name, array.nbytes)
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, array.nbytes, 1024)
        before = read_metric(server, copied, model="default")
        client.infer("default", [tensor], outputs=[wanted])
        got = shm.get_contents_as_numpy(handle, np.float32, [2, 4], 1024)
        np.testing.assert_array_equal(got, array + 1)
        assert read_metric(server, copied, model="default") == before


def test_shapes_that_depend_on_values_are_counted(client, server: RunningServer) -> None:
    for count in (3, 0, 8, 5):
        array = np.zeros(8, np.float32)
        array[:count] = 1
        tensor = grpcclient.InferInput("INPUT0", [8], "FP32")
        tensor.set_data_from_numpy(array)
        got = client.infer("nonzero", [tensor]).as_numpy("OUTPUT0")
        assert got.tolist() == [list(range(count))]
    assert read_metric(server, FALLBACKS, model="nonzero", name="output_allocated_by_backend") >= 3


def test_a_wrong_option_fails_its_model_by_name(server: RunningServer) -> None:
    words = "gpu_execution_accelerator 'cuda': unknown parameter 'prefer_nwhc'; did you mean 'prefer_nhwc'?"
    assert words in server.log.read_text()


def test_a_capture_that_fails_is_told_once_and_counted(tmp_path) -> None:
    models.add_one(tmp_path / "models", "m", f"max_batch_size: 8 {GROUP}")
    server = start_headrace(
        tmp_path / "models", tmp_path / "log", module="tests.onnx_double", DOUBLE_FAILS_CAPTURES="1"
    )
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for rows in (1, 5, 8):
            array = np.ones((rows, 4), np.float32)
            np.testing.assert_array_equal(ask(client, "m", array)[0].result(60), array + 1)
    assert read_metric(server, FALLBACKS, model="m", name="cuda_graph") == 3
    assert server.stop() == 0
    assert server.log.read_text().count("model 'm' is computed without CUDA graphs: ") == 1


@pytest.mark.gpu
@pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)
@pytest.mark.skipif(not DETECTOR.exists(), reason=f"there is no {DETECTOR} (HEADRACE_SHARED says where to look)")
def test_the_detector_agrees_with_the_cpu(tmp_path) -> None:
    images = np.random.default_rng(5).random((3, 3, 384, 640), np.float32).astype(np.float16)
    session = onnxruntime.InferenceSession(str(DETECTOR), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"images": images})
    (tmp_path / "models" / "yolo" / "1").mkdir(parents=True)
    (tmp_path / "models" / "yolo" / "1" / "model.onnx").symlink_to(DETECTOR.absolute())
    dims = 'input { name: "images" dims: [3, 384, 640] } output { name: "output0" dims: [84, 5040] }'
    config = f"max_batch_size: 4 {dims} {GROUP} {accelerator(prefer_nhwc=1)}"
    (tmp_path / "models" / "yolo" / "config.pbtxt").write_text(config)
    server = start_headrace(tmp_path / "models", tmp_path / "log")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        tensor = grpcclient.InferInput("images", list(images.shape), "FP16")
        tensor.set_data_from_numpy(images)
        got = client.infer("yolo", [tensor]).as_numpy("output0")
    assert server.stop() == 0
    scale = np.abs(expected.astype(np.float32)).max()
    assert np.abs(got.astype(np.float32) - expected.astype(np.float32)).max() < 0.02 * scale
    assert "without CUDA graphs" not in (tmp_path / "log").read_text()


def _write_torch(repository: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    directory = models.write_config(
        repository, "m", 'platform: "pytorch_libtorch"\n' + models.io_config("FP32", [4], 8, GROUP)
    )
    torch.jit.script(torch.nn.Linear(4, 4)).save(str(directory / "model.pt"))


def _write_onnx(repository: Path) -> None:
    models.add_one(repository, "m", f"max_batch_size: 8 {GROUP}")


@pytest.mark.gpu
@pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("write", [_write_onnx, _write_torch])
def test_memory_of_the_gpu_is_flat_over_loads_and_unloads(tmp_path, write) -> None:
    """By the driver's own numbers. The first cycles may set up what stays for the process: libraries, heaps."""
    from cuda.bindings import runtime

    write(tmp_path)
    wire = Wire(client_shm="true", max_requests=100, max_bytes=1 << 20, stall_secs=30.0)
    lifecycle = Lifecycle(wire, Log(), DEVICES, Pinning(DEVICES, Log()), ConfigRules())
    (found,) = scan([tmp_path])
    free: list[int] = []
    for _ in range(CYCLES):
        lifecycle.load(found)
        assert lifecycle.first_failure() is None
        assert lifecycle.unload_all(time.monotonic() + 30)
        _, now, _ = runtime.cudaMemGetInfo()
        free.append(int(now))
    print("free MiB:", [round(now / MIB) for now in free])
    assert free[-1] >= free[5] - 2 * MIB
