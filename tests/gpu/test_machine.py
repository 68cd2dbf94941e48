"""Figures of real GPUs on the metrics page."""

from __future__ import annotations

import pytest

from headrace.observe.machine import find_gpus
from tests import models
from tests.doors.test_metrics import families
from tests.servers import RunningServer

gauge, why_none = find_gpus()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(gauge is None, reason=why_none)]


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    models.identity(repository := tmp_path_factory.mktemp("models"), "echo", "FP32", [-1])
    return start(repository, "--metrics-interval-ms=1")


def values(server: RunningServer, name: str) -> dict[str, float]:
    return {sample.labels["gpu_uuid"]: sample.value for sample in families(server)[name].samples}


def test_figures_are_those_of_the_driver(server: RunningServer) -> None:
    assert gauge is not None
    told = {gpu.uuid: gpu for gpu in gauge.read()}
    total, used = values(server, "nv_gpu_memory_total_bytes"), values(server, "nv_gpu_memory_used_bytes")
    assert total == {uuid: gpu.memory_total for uuid, gpu in told.items()}
    assert all(0 < used[uuid] <= total[uuid] for uuid in told)
    assert all(0 <= value <= 1 for value in values(server, "nv_gpu_utilization").values())
    power, limit = values(server, "nv_gpu_power_usage"), values(server, "nv_gpu_power_limit")
    assert all(10 < power[uuid] < 2 * limit[uuid] for uuid in told)  # W
    assert limit == {uuid: gpu.power_limit for uuid, gpu in told.items()}


def test_energy_grows_from_the_start_of_the_server(server: RunningServer) -> None:
    before = values(server, "nv_energy_consumption")
    assert all(0 <= joules < 1e6 for joules in before.values())
    while not all(values(server, "nv_energy_consumption")[uuid] > joules for uuid, joules in before.items()):
        pass  # the driver counts every 20 to 100 ms


def test_without_gpu_metrics_there_are_none(start, tmp_path) -> None:
    models.identity(tmp_path, "echo", "FP32", [-1])
    assert "nv_gpu_utilization" not in families(start(tmp_path, "--allow-gpu-metrics=false"))
