"""Loading and unloading a TensorRT plan again and again: what it held of the device comes back, every time."""

from __future__ import annotations

import sys
import threading
import time

from headrace.config.pbtxt import ConfigRules
from headrace.core.wire import Wire
from headrace.memory.pinning import Pinning
from headrace.observe.logs import Log
from headrace.repository.lifecycle import Lifecycle, State
from headrace.repository.scan import scan
from tests import models_tensorrt as models
from tests.tensorrt_double.serve import Device

CYCLES = 20
DEADLINE_S = 30


def test_device_memory_is_flat_over_loads_and_unloads(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(models.DOUBLE))
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    description = models.affine(models.rows(1, 4, 8), models.rows(1, 16, 16))
    models.write(tmp_path, "m", description, "backend: 'tensorrt' instance_group { count: 2 }")
    devices = [Device(0), Device(1)]
    wire = Wire(client_shm="true", max_requests=100, max_bytes=1 << 20, stall_secs=30.0)
    lifecycle = Lifecycle(wire, Log(), devices, Pinning(devices, Log()), ConfigRules())
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
    sys.modules.pop("tensorrt", None)
