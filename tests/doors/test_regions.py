"""System shared memory as clients use it."""

from __future__ import annotations

import base64
import json
import threading
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests import models
from tests.doors.clients import region
from tests.metrics import read_metric
from tests.servers import RunningServer

IMAGE = 4 * 1024


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.transpose(repository, "transpose")
    models.add_one(repository, "add_one", "max_batch_size: 8 dynamic_batching {} instance_group { count: 1 }")
    models.add_one(
        repository, "pairs", "max_batch_size: 8 instance_group { count: 1 }" + models.TOGETHER.format(size=2)
    )
    return start(repository)


@pytest.fixture(params=["grpc", "http"])
def client(request, server: RunningServer):
    module, url = (grpcclient, server.grpc) if request.param == "grpc" else (httpclient, server.http)
    with module.InferenceServerClient(url) as connected:
        connected.module = module
        yield connected


def rows_of(client, status) -> dict[str, tuple[str, int, int]]:
    if client.module is httpclient:
        return {row["name"]: (row["key"], row["offset"], row["byte_size"]) for row in status}
    return {name: (row.key, row.offset, row.byte_size) for name, row in status.regions.items()}


def test_status_and_metrics_say_whether_a_region_is_page_locked(start, tmp_path_factory) -> None:
    """On a server without a GPU none is, on one with (simulated) GPUs all are."""
    for options, reason in [((), "this server has no GPU"), (("--simulate-gpus=1",), "")]:
        repository = tmp_path_factory.mktemp("models")
        models.identity(repository, "echo", "FP32", [4], max_batch=0)
        server = start(repository, *options)
        with grpcclient.InferenceServerClient(server.grpc) as client, region(client, 4096) as (name, _):
            address = f"http://{server.http}/v2/systemsharedmemory/region/{name}/status"
            with urllib.request.urlopen(address) as answer:
                (row,) = json.load(answer)
            assert (row["pinned"], row["unpinned_reason"], row["leases"]) == (not reason, reason, 0)
            (known,) = client.get_system_shared_memory_status(name).regions.values()
            assert known.byte_size == 4096
            assert read_metric(server, "headrace_regions", kind="system", unpinned=reason) == 1
            assert read_metric(server, "headrace_region_bytes", kind="system", unpinned=reason) == 4096


def test_register_status_unregister(client) -> None:
    with region(client, 4096) as (name, _):
        client.register_system_shared_memory("other", f"/{name}", 1000, offset=96)
        rows = rows_of(client, client.get_system_shared_memory_status())
        assert rows == {name: (f"/{name}", 0, 4096), "other": (f"/{name}", 96, 1000)}
        assert rows_of(client, client.get_system_shared_memory_status("other")) == {"other": (f"/{name}", 96, 1000)}
        client.unregister_system_shared_memory("other")
        client.unregister_system_shared_memory("other")  # unknown names are fine
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'other'"):
            client.get_system_shared_memory_status("other")
        client.unregister_system_shared_memory()
        assert rows_of(client, client.get_system_shared_memory_status()) == {}


def test_registrations_that_cannot_be(client) -> None:
    with region(client, 4096) as (name, _):
        for arguments, words in [
            ((name, f"/{name}", 4096), "already in manager"),
            (("r", f"/{name}", 4097), "failed to register shared memory region 'r': invalid args"),
            (("r", f"/{name}", 4096, 1), "failed to register shared memory region 'r': invalid args"),
            (("r", f"/{name}", 2, 2**64 - 1), "does not fit 64 bits"),
            (("r", f"/{name}", 0), "byte size is 0"),
            (("r", "/headrace_absent", 1), r"Unable to open shared memory region: 'r'.*containers"),
            (("r", "///", 1), "invalid shm key"),
            (("r", "/../etc/passwd", 1), "invalid shm key"),
            (("r", "/triton_python_backend_shm_region_1", 1), "reserved prefix"),
        ]:
            with pytest.raises(InferenceServerException, match=words):
                client.register_system_shared_memory(*arguments)


def test_cuda_verbs_without_a_gpu(client) -> None:
    status = client.get_cuda_shared_memory_status()
    assert status == [] if client.module is httpclient else not status.regions
    client.unregister_cuda_shared_memory()
    handle = base64.b64encode(bytes(64))
    with pytest.raises(InferenceServerException, match="this server has no GPU"):
        client.register_cuda_shared_memory("r", handle, 0, 1)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
        client.get_cuda_shared_memory_status("r")


def infer_within(client, model: str, name: str, at: int, out: int, size: int = 16, out_size: int = 16):
    tensor = client.module.InferInput("INPUT0", [1, 4], "FP32")
    tensor.set_shared_memory(name, size, at)
    wanted = client.module.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory(name, out_size, out)
    return client.infer(model, [tensor], outputs=[wanted])


def read(handle, at: int) -> np.ndarray:
    return shm.get_contents_as_numpy(handle, np.float32, [1, 4], at).copy()


def test_one_request_is_computed_in_place(client, server: RunningServer) -> None:
    with region(client, 4096) as (name, handle):
        shm.set_shared_memory_region(handle, [np.full((1, 4), 5, np.float32)], offset=64)
        before = [
            read_metric(server, "headrace_transfer_copied_bytes_total", model="add_one", direction=d)
            for d in ("input", "output")
        ]
        infer_within(client, "add_one", name, at=64, out=1024)
        after = [
            read_metric(server, "headrace_transfer_copied_bytes_total", model="add_one", direction=d)
            for d in ("input", "output")
        ]
        np.testing.assert_array_equal(read(handle, 1024), np.full((1, 4), 6))
        assert after == before


def test_a_batch_costs_one_copy_in_and_one_out(client, server: RunningServer) -> None:
    with region(client, 4096) as (name, handle):
        shm.set_shared_memory_region(handle, [np.arange(8, dtype=np.float32)])
        before = [
            read_metric(server, "headrace_transfer_copied_bytes_total", model="pairs", direction=d)
            for d in ("input", "output")
        ]
        second = threading.Thread(target=partner, args=(client.module, server, name, 64, 2048))
        second.start()
        infer_within(client, "pairs", name, at=0, out=1024)
        second.join()
        after = [
            read_metric(server, "headrace_transfer_copied_bytes_total", model="pairs", direction=d)
            for d in ("input", "output")
        ]
        assert [now - then for now, then in zip(after, before, strict=True)] == [32, 32]
        np.testing.assert_array_equal(read(handle, 1024), [[1, 2, 3, 4]])
        np.testing.assert_array_equal(read(handle, 2048), [[1, 1, 1, 1]])


def test_neighbours_in_a_region_are_a_view(client, server: RunningServer) -> None:
    """Two requests whose inputs touch need no copy in, in whichever order they come."""
    with region(client, 4096) as (name, handle):
        shm.set_shared_memory_region(handle, [np.arange(8, dtype=np.float32)])
        copied = []
        for first, second in ((0, 16), (16, 0)):
            before = read_metric(server, "headrace_transfer_copied_bytes_total", model="pairs", direction="input")
            wait = threading.Thread(target=partner, args=(client.module, server, name, second, 2048))
            infer = threading.Thread(target=partner, args=(client.module, server, name, first, 1024))
            infer.start()
            wait.start()
            infer.join()
            wait.join()
            copied.append(
                read_metric(server, "headrace_transfer_copied_bytes_total", model="pairs", direction="input") - before
            )
            np.testing.assert_array_equal(read(handle, 1024), np.arange(8).reshape(2, 4)[[first // 16]] + 1)
        assert set(copied) <= {0, 32}


def partner(module, server: RunningServer, name: str, at: int, out: int) -> None:
    url = server.grpc if module is grpcclient else server.http
    with module.InferenceServerClient(url) as client:
        client.module = module
        infer_within(client, "pairs", name, at, out)


def test_references_out_of_bounds(client) -> None:
    with region(client, 4096) as (name, _):
        for place, words in [
            ({"at": 4096, "out": 0}, "Invalid offset for shared memory region"),
            ({"at": 4090, "out": 0}, r"Invalid offset \+ byte size for shared memory region"),
            ({"at": 0, "out": 5000}, "Invalid offset for shared memory region"),
            ({"at": 0, "out": 0, "size": 12}, "input byte size mismatch for input 'INPUT0'"),
            (
                {"at": 0, "out": 0, "out_size": 8},
                r"shared memory size specified with the request for output 'OUTPUT0' .* should be at least 16",
            ),
        ]:
            with pytest.raises(InferenceServerException, match=words):
                infer_within(client, "add_one", name, **place)
        with pytest.raises(InferenceServerException, match=r"Integer overflow detected|Invalid offset|not negative"):
            infer_within(client, "add_one", name, at=2**62, out=0, size=2**63 - 1)


def test_regions_may_go_while_requests_are_in_flight(client, server: RunningServer) -> None:
    """Unregister, unlink and take the name again: the request that waits keeps its memory."""
    name = "headrace_test_leases"
    handle = shm.create_shared_memory_region(name, f"/{name}", 4096)
    client.register_system_shared_memory(name, f"/{name}", 4096)
    shm.set_shared_memory_region(handle, [np.full((1, 4), 8, np.float32)])
    waiting = threading.Thread(target=partner, args=(client.module, server, name, 0, 1024))
    waiting.start()
    while read_metric(server, "nv_inference_pending_request_count", model="pairs") < 1:
        pass
    client.unregister_system_shared_memory(name)
    contents = shm.get_contents_as_numpy(handle, np.float32, [1, 4], 1024)
    with region(client, 4096) as (other, _):
        client.register_system_shared_memory(name, f"/{other}", 4096)
        infer_within(client, "pairs", other, at=0, out=64)  # the second of the pair
        waiting.join()
        np.testing.assert_array_equal(contents, np.full((1, 4), 9))
        client.unregister_system_shared_memory(name)
    del contents
    shm.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("setting", ["false", "local", "true"])
def test_allow_client_shm(start, tmp_path_factory, setting: str) -> None:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [4])
    server = start(repository, f"--allow-client-shm={setting}")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.module = grpcclient
        if setting == "false":
            with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
                client.register_system_shared_memory("r", "/r", 1)
            with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
                infer_within(client, "echo", "r", 0, 0)
        else:
            with region(client, 4096) as (name, _):
                infer_within(client, "echo", name, 0, 16)


@pytest.mark.parametrize("out", [0, 64, 512])
def test_an_output_over_its_input_is_right(client, out: int) -> None:
    array = np.arange(256, dtype=np.float32).reshape(16, 16)
    with region(client, 4096) as (name, handle):
        shm.set_shared_memory_region(handle, [array])
        tensor = client.module.InferInput("INPUT0", [16, 16], "FP32")
        tensor.set_shared_memory(name, 1024, 0)
        wanted = client.module.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, 1024, out)
        client.infer("transpose", [tensor], outputs=[wanted])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [16, 16], out), array.T)
