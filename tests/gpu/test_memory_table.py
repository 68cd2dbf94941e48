"""Every row of the memory table on a real GPU: inputs from messages, system and CUDA regions, outputs to each."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests import models
from tests.metrics import read_metric
from tests.servers import RunningServer

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

PLACES = ("inline", "system", "cuda")
GIB = 1 << 30


class Affine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


class Slice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 144, 5120)[:, :84, :5040]


def write(repository, name: str, module: torch.nn.Module, config: str) -> None:
    directory = models.write_config(repository, name, 'platform: "pytorch_libtorch"\n' + config)
    torch.jit.script(module).save(str(directory / "model.pt"))


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    together = models.TOGETHER.format(size=3)
    write(repository, "alone", Affine(), models.io_config("FP32", [-1], 8, "dynamic_batching {}"))
    write(repository, "threes", Affine(), models.io_config("FP32", [64], 8, together))
    write(repository, "whole", Affine(), models.io_config("FP32", [-1], 0, ""))
    sides = (
        'input { name: "INPUT0" data_type: TYPE_FP16 dims: [3, 384, 640] }'
        'output { name: "OUTPUT0" data_type: TYPE_FP16 dims: [84, 5040] }'
    )
    write(repository, "slice", Slice(), f"max_batch_size: 32 dynamic_batching {{}} {sides}")
    return start(repository)


@pytest.fixture
def client(server: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


class SystemRegion:
    def __init__(self, client, nbytes: int) -> None:
        self.client, self.name = client, f"headrace_gpu_{uuid.uuid4().hex}"
        self.handle = shm.create_shared_memory_region(self.name, f"/{self.name}", nbytes)
        client.register_system_shared_memory(self.name, f"/{self.name}", nbytes)

    def write(self, array: np.ndarray, offset: int) -> None:
        shm.set_shared_memory_region(self.handle, [array], offset=offset)

    def read(self, dtype, shape, offset: int) -> np.ndarray:
        return shm.get_contents_as_numpy(self.handle, dtype, shape, offset).copy()

    def close(self) -> None:
        self.client.unregister_system_shared_memory(self.name)
        shm.destroy_shared_memory_region(self.handle)


class CudaRegion:
    def __init__(self, client, nbytes: int) -> None:
        from tritonclient.utils import cuda_shared_memory

        self.module, self.client, self.name = cuda_shared_memory, client, f"cuda_{uuid.uuid4().hex}"
        self.handle = cuda_shared_memory.create_shared_memory_region(self.name, nbytes, 0)
        raw = cuda_shared_memory.get_raw_handle(self.handle)
        client.register_cuda_shared_memory(self.name, raw, 0, nbytes)

    def write(self, array: np.ndarray, offset: int) -> None:
        assert offset == 0, "its helper writes from the start"
        self.module.set_shared_memory_region(self.handle, [array])

    def read(self, dtype, shape, offset: int) -> np.ndarray:
        count = offset // np.dtype(dtype).itemsize + int(np.prod(shape))
        flat = self.module.get_contents_as_numpy(self.handle, dtype, [count])
        return flat[-int(np.prod(shape)) :].reshape(shape).copy()

    def close(self) -> None:
        self.client.unregister_cuda_shared_memory(self.name)
        self.module.destroy_shared_memory_region(self.handle)


@contextmanager
def regions(client, kinds, nbytes: int) -> Iterator[dict[str, object]]:
    makers = {"system": SystemRegion, "cuda": CudaRegion}
    made = {kind: makers[kind](client, nbytes) for kind in kinds if kind in makers}
    try:
        yield made
    finally:
        for one in made.values():
            one.close()


def request(
    client, model: str, array: np.ndarray, source, target, at: int, datatype: str = "FP32", out_bytes: int = 0
) -> Future:
    """An inference with input and output in the given regions (`None`: inline)."""
    tensor = grpcclient.InferInput("INPUT0", list(array.shape), datatype)
    if source is None:
        tensor.set_data_from_numpy(array)
    else:
        tensor.set_shared_memory(source.name, array.nbytes, 0)
    wanted = grpcclient.InferRequestedOutput("OUTPUT0")
    if target is not None:
        wanted.set_shared_memory(target.name, out_bytes or array.nbytes, at)
    future: Future = Future()
    client.async_infer(
        model,
        [tensor],
        lambda result, error: future.set_exception(error) if error else future.set_result(result),
        outputs=[wanted],
    )
    return future


def answer(future: Future, target, array: np.ndarray, at: int) -> np.ndarray:
    result = future.result(60)
    return result.as_numpy("OUTPUT0") if target is None else target.read(array.dtype, array.shape, at)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(PLACES, PLACES)))
def test_one_request(client, server: RunningServer, source: str, target: str) -> None:
    array = np.random.default_rng(1).standard_normal((2, 1000), np.float32)
    with regions(client, {source, target}, 4 * array.nbytes) as made:
        if source != "inline":
            made[source].write(array, 0)
        copied = read_metric(server, "headrace_transfer_copied_bytes_total", model="alone")
        future = request(client, "alone", array, made.get(source), made.get(target), 2 * array.nbytes)
        got = answer(future, made.get(target), array, 2 * array.nbytes)
        np.testing.assert_allclose(got, array * 2 + 1, rtol=1e-6)
        moved = read_metric(server, "headrace_transfer_copied_bytes_total", model="alone") - copied
        assert moved == (array.nbytes if source == "inline" else 0)


def test_inputs_and_outputs_of_all_kinds_in_one_batch(client) -> None:
    generator = np.random.default_rng(2)
    arrays = [generator.standard_normal((1, 64), np.float32) for _ in PLACES]
    with regions(client, PLACES, 4096) as made:
        for kind, array in zip(PLACES, arrays, strict=True):
            if kind in made:
                made[kind].write(array, 0)
        targets = ["cuda", "inline", "system"]
        futures = [
            request(client, "threes", array, made.get(kind), made.get(target), 1024)
            for kind, target, array in zip(PLACES, targets, arrays, strict=True)
        ]
        # The lanes of host and of device tensors differ: the lone CUDA request needs company of its kind.
        futures += [request(client, "threes", arrays[2], made["cuda"], None, 0) for _ in range(2)]
        futures += [request(client, "threes", arrays[0], None, None, 0)]
        assert not wait(futures, timeout=60).not_done
        for future, target, array in zip(futures, targets, arrays, strict=False):
            np.testing.assert_allclose(answer(future, made.get(target), array, 1024), array * 2 + 1, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 5, 8])
def test_batches_between_the_sizes_of_graphs(client, rows: int) -> None:
    array = np.random.default_rng(rows).standard_normal((rows, 300), np.float32)
    got = answer(request(client, "alone", array, None, None, 0), None, array, 0)
    np.testing.assert_allclose(got, array * 2 + 1, rtol=1e-6)


def test_a_tensor_across_the_piece_boundary(client) -> None:
    """The region is page-locked in pieces of 1 GiB; a tensor may lie across two, and so may an output."""
    count = 1_000_000
    array = np.random.default_rng(3).standard_normal((count,), np.float32)
    region = SystemRegion(client, 3 * GIB)
    try:
        start = GIB - 2_000_000
        out = 2 * GIB - 1_999_996
        region.write(array, start)
        tensor = grpcclient.InferInput("INPUT0", [count], "FP32")
        tensor.set_shared_memory(region.name, array.nbytes, start)
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(region.name, array.nbytes, out)
        client.infer("whole", [tensor], outputs=[wanted])
        np.testing.assert_allclose(region.read(np.float32, [count], out), array * 2 + 1, rtol=1e-6)
    finally:
        region.close()


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_the_founding_reports_tensors(client, server: RunningServer, kind: str) -> None:
    array = np.random.default_rng(4).standard_normal((1, 3, 384, 640)).astype(np.float16)
    expected = array.reshape(-1, 144, 5120)[:, :84, :5040]
    with regions(client, {kind}, 4_000_000) as made:
        made[kind].write(array, 0)
        futures = [
            request(client, "slice", array, made[kind], made[kind], 2_000_000, "FP16", expected.nbytes)
            for _ in range(100)
        ]
        assert not wait(futures, timeout=60).not_done
        assert all(future.exception() is None for future in futures)
        np.testing.assert_array_equal(made[kind].read(np.float16, [1, 84, 5040], 2_000_000), expected)
    assert read_metric(server, "headrace_transfer_copied_bytes_total", model="slice") == 0


def test_wrong_handles_get_an_error_that_says_what_they_are(client) -> None:
    import base64

    for raw, device, size, words in [
        (b"short", 0, 64, "a handle has 64 bytes, got 5"),
        (bytes(64), 0, 64, "the handle must be of memory that another live process allocated"),
        (bytes(64), 9, 64, "device 9 is not one of"),
    ]:
        with pytest.raises(InferenceServerException, match=words):
            client.register_cuda_shared_memory("wrong", base64.b64encode(raw), device, size)
    good = CudaRegion(client, 4096)
    try:
        raw = good.module.get_raw_handle(good.handle)
        with pytest.raises(InferenceServerException, match=r"is over the .* bytes of the allocation"):
            client.register_cuda_shared_memory("large", raw, 0, 1 << 33)
    finally:
        good.close()


def test_regions_come_and_go_while_requests_are_in_flight(client, server: RunningServer) -> None:
    array = np.ones((1, 3, 384, 640), np.float16)
    for _ in range(20):
        region = SystemRegion(client, 4_000_000)
        region.write(array, 0)
        futures = [request(client, "slice", array, region, region, 2_000_000, "FP16", 846_720) for _ in range(8)]
        region.client.unregister_system_shared_memory(region.name)
        assert not wait(futures, timeout=60).not_done
        answered = [future for future in futures if future.exception() is None]
        assert all("Unable to find" in str(future.exception()) for future in futures if future not in answered)
        region.close()
    assert server.process.poll() is None
