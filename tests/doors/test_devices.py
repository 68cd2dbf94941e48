"""The pipeline behind the real wire, on simulated GPUs: which device serves what, and what is copied by whom."""

from __future__ import annotations

import base64
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import headrace
from tests import models
from tests.doors.asking import ask, until_waiting
from tests.doors.clients import region
from tests.metrics import read_metric
from tests.servers import RunningServer

SIMULATED = 'backend: "simulated" parameters { key: "batch_us" value { string_value: "2000" } }\n'


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    batching = "dynamic_batching {}"
    models.write_config(repository, "many", SIMULATED + models.io_config("FP32", [-1], 4, batching))
    models.write_config(repository, "one", SIMULATED + models.io_config("FP32", [4], 0, "instance_group { gpus: [1] }"))
    return start(repository, "--simulate-gpus=2")


@pytest.fixture
def client(server: RunningServer):
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def test_instances_are_where_the_config_puts_them(client, server: RunningServer) -> None:
    groups = {name: client.get_model_config(name).config.instance_group for name in ("many", "one")}
    assert [(group.kind, group.count, list(group.gpus)) for group in groups["many"]] == [(1, 1, [0, 1])]
    assert [list(group.gpus) for group in groups["one"]] == [[1]]
    assert "GPUs: simulated GPU, simulated GPU" in server.log.read_text()


def test_many_requests_are_answered_in_batches(client) -> None:
    before = client.get_inference_statistics("many").model_stats[0]
    futures = [ask(client, "many", np.ones((1, 3)))[0] for _ in range(200)]
    assert not wait(futures, timeout=60).not_done
    assert all(future.result().shape == (1, 1) for future in futures)
    row = client.get_inference_statistics("many").model_stats[0]
    assert row.inference_count - before.inference_count == 200
    assert row.execution_count - before.execution_count < 120
    spans = row.inference_stats
    assert spans.compute_infer.ns / spans.compute_infer.count == pytest.approx(2_000_000, rel=0.01)


def test_a_page_locked_region_is_not_touched_by_the_cpu(client, server: RunningServer) -> None:
    copied = "headrace_transfer_copied_bytes_total"
    with region(client, 4096) as (name, _):
        tensor = grpcclient.InferInput("INPUT0", [4], "FP32")
        tensor.set_shared_memory(name, 16)
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, 16, 64)
        before = read_metric(server, copied, model="one"), read_metric(server, "headrace_transfer_fallback_total")
        client.infer("one", [tensor], outputs=[wanted])
        after = read_metric(server, copied, model="one"), read_metric(server, "headrace_transfer_fallback_total")
        assert after == before
        wanted.set_shared_memory(name, 8, 64)
        with pytest.raises(InferenceServerException, match="should be at least 16 bytes"):
            client.infer("one", [tensor], outputs=[wanted])


def test_inline_tensors_are_staged_and_counted(client, server: RunningServer) -> None:
    before = read_metric(server, "headrace_transfer_fallback_total", model="one", name="staged_input")
    tensor = grpcclient.InferInput("INPUT0", [4], "FP32")
    tensor.set_data_from_numpy(np.ones(4, np.float32))
    assert client.infer("one", [tensor]).as_numpy("OUTPUT0").shape == (4,)
    assert read_metric(server, "headrace_transfer_fallback_total", model="one", name="staged_input") == before + 1


def test_cuda_regions_by_handle(client) -> None:
    handle = base64.b64encode(bytes(64))
    client.register_cuda_shared_memory("r", handle, 1, 4096)
    status = client.get_cuda_shared_memory_status("r").regions["r"]
    assert (status.device_id, status.byte_size) == (1, 4096)
    tensor = grpcclient.InferInput("INPUT0", [4], "FP32")
    tensor.set_shared_memory("r", 16)
    wanted = grpcclient.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("r", 16, 64)
    client.infer("one", [tensor], outputs=[wanted])
    client.unregister_system_shared_memory("r")  # of the other kind: nothing happens
    assert client.get_cuda_shared_memory_status().regions
    client.unregister_cuda_shared_memory()
    assert not client.get_cuda_shared_memory_status().regions
    for arguments, words in [
        (("r", base64.b64encode(b"short"), 0, 1), "a handle has 64 bytes, got 5"),
        (("r", handle, 2, 1), "device 2 is not one of 2 GPUs"),
        (("r", handle, 0, 0), "byte size is 0"),
    ]:
        with pytest.raises(InferenceServerException, match=words):
            client.register_cuda_shared_memory(*arguments)


def test_a_model_on_the_cpu_refuses_cuda_regions(start, tmp_path_factory) -> None:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [4], max_batch=0)
    server = start(repository, "--simulate-gpus=1")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.register_cuda_shared_memory("r", base64.b64encode(bytes(64)), 0, 4096)
        tensor = grpcclient.InferInput("INPUT0", [4], "FP32")
        tensor.set_shared_memory("r", 16)
        with pytest.raises(
            InferenceServerException, match="runs on the CPU, which cannot reach CUDA shared memory region 'r'"
        ):
            client.infer("echo", [tensor])


def test_a_prefetch_waits_for_a_full_batch(start, tmp_path_factory) -> None:
    """While a batch computes, four requests become one batch and not four."""
    repository = tmp_path_factory.mktemp("models")
    slow = SIMULATED.replace("2000", "500000")
    models.write_config(repository, "slow", slow + models.io_config("FP32", [-1], 4, "dynamic_batching {}"))
    server = start(repository, "--simulate-gpus=1")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        futures = [ask(client, "slow", np.ones((1, 3)))[0]]
        while client.get_inference_statistics("slow").model_stats[0].inference_stats.queue.count == 0 and (
            read_metric(server, "headrace_batch_leave_total", model="slow") == 0
        ):
            pass
        for number in range(3):
            futures.append(ask(client, "slow", np.ones((1, 3)))[0])
            until_waiting(server, "slow", number + 1)
        futures.append(ask(client, "slow", np.ones((1, 3)))[0])
        assert not wait(futures, timeout=60).not_done
        batches = client.get_inference_statistics("slow").model_stats[0].batch_stats
        assert [(row.batch_size, row.compute_infer.count) for row in batches] == [(1, 1), (4, 1)]


def lost(gpu: int, after: int) -> str:
    parameter = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    return SIMULATED + parameter.format("lost_gpu", gpu) + parameter.format("lost_after", after)


def test_a_lost_device_takes_its_own_requests_with_it_and_no_others(start, tmp_path_factory) -> None:
    repository = tmp_path_factory.mktemp("models")
    models.write_config(repository, "m", lost(1, 2) + models.io_config("FP32", [-1], 4, "dynamic_batching {}"))
    server = start(repository, "--simulate-gpus=2")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        futures = [ask(client, "m", np.ones((1, 3)))[0] for _ in range(200)]
        assert not wait(futures, timeout=60).not_done
        failures = [str(future.exception()) for future in futures if future.exception()]
        assert 0 < len(failures) <= 8, "two slots of four requests were on the device"
        assert all("GPU 1: it was lost" in failure for failure in failures)
        again = [ask(client, "m", np.ones((1, 3)))[0] for _ in range(100)]
        assert not any(future.exception(60) for future in again)
        assert client.is_server_ready()
    assert "its GPU 1 is out of service: it was lost" in server.log.read_text()


def test_a_model_that_lost_its_last_device_is_unready_and_says_why(start, tmp_path_factory) -> None:
    repository = tmp_path_factory.mktemp("models")
    models.write_config(repository, "m", lost(0, 1) + models.io_config("FP32", [-1], 4, "dynamic_batching {}"))
    models.identity(repository, "echo", "FP32", [4], max_batch=0)
    server = start(repository, "--simulate-gpus=1")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        futures = [ask(client, "m", np.ones((1, 3)))[0] for _ in range(40)]
        assert not wait(futures, timeout=60).not_done
        words = ("it was lost", "lost its last device", "has no available versions")
        failures = [str(future.exception()) for future in futures if future.exception()]
        assert failures
        assert not [failure for failure in failures if not any(word in failure for word in words)]
        until_unready(client, "m")
        assert not client.is_server_ready()
        assert any("lost its last device" in row.reason for row in client.get_model_repository_index().models)
        assert ask(client, "echo", np.ones(4, np.float32))[0].result(30).tolist() == [1, 1, 1, 1]


def until_unready(client, model: str) -> None:
    while client.is_model_ready(model):
        pass


def test_no_product_code_asks_whether_a_device_is_simulated() -> None:
    """What chooses devices, and the simulated ones themselves, may name them; tables of options and backends, too."""
    package = Path(headrace.__file__).parent
    may = {"memory/simulated.py", "memory/device.py", "backend/simulated.py", "placement/devices.py"}
    told = {"config/options.py", "server.py", "backend/engines.py", "config/complete.py", "config/validate.py"}
    named = {str(path.relative_to(package)) for path in package.rglob("*.py") if "simulate" in path.read_text().lower()}
    assert named - may == told
    assert all("SimulatedDevice" not in (package / path).read_text() for path in told)
