"""Loading and unloading a model on a GPU again and again: what it held of the device comes back, every time.

`HEADRACE_LOAD_CYCLES=10000 pytest tests/unit/repository/test_cycles.py --timeout=3600` for the whole number.
"""

from __future__ import annotations

import os
import threading
import time

import pytest

from headrace.config.pbtxt import ConfigRules
from headrace.core.wire import Wire
from headrace.memory.pinning import Pinning
from headrace.memory.simulated import SimulatedDevice
from headrace.observe.logs import Log
from headrace.repository.lifecycle import Lifecycle, State
from headrace.repository.scan import scan
from tests import models

CYCLES = int(os.environ.get("HEADRACE_LOAD_CYCLES", "50"))
DEADLINE_S = 30


def a_wire() -> Wire:
    return Wire(client_shm="true", max_requests=100, max_bytes=1 << 20, stall_secs=30.0)


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_device_memory_is_flat_over_loads_and_unloads(tmp_path, blocking: str) -> None:
    simulated = f'backend: "simulated" parameters {{ key: "blocking" value {{ string_value: "{blocking}" }} }}\n'
    group = "instance_group { count: 2 }"
    models.write_config(tmp_path, "m", simulated + models.io_config("FP32", [4], 4, "dynamic_batching {}" + group))
    devices = [SimulatedDevice(0), SimulatedDevice(1)]
    lifecycle = Lifecycle(a_wire(), Log(), devices, Pinning(devices, Log()), ConfigRules())
    (found,) = scan([tmp_path])
    threads = threading.active_count()
    for _ in range(CYCLES):
        lifecycle.load(found)
        assert lifecycle.first_failure() is None
        assert all(device.used() != (0, 0) for device in devices)
        assert lifecycle.unload_all(time.monotonic() + DEADLINE_S)
        assert [version.state for version in lifecycle.versions()] == [State.UNAVAILABLE]
        assert [device.used() for device in devices] == [(0, 0), (0, 0)]
    assert threading.active_count() == threads


def test_a_load_that_fails_halfway_leaves_nothing_on_the_devices(tmp_path, monkeypatch) -> None:
    models.write_config(tmp_path, "m", 'backend: "simulated"\n' + models.io_config("FP32", [4], 4, ""))
    devices = [SimulatedDevice(0), SimulatedDevice(1)]
    lifecycle = Lifecycle(a_wire(), Log(), devices, Pinning(devices, Log()), ConfigRules())
    (found,) = scan([tmp_path])

    def refuse() -> None:
        raise MemoryError("no stream for anybody")

    monkeypatch.setattr(devices[1], "stream", refuse)
    lifecycle.load(found)
    assert "no stream for anybody" in str(lifecycle.first_failure())
    deadline = time.monotonic() + DEADLINE_S
    while devices[0].used() != (0, 0):
        assert time.monotonic() < deadline, "the first instance still holds its device"
        time.sleep(0.001)
