"""Python models (`backend: "python"`): `model.py` with a class `TritonPythonModel`, in a process for each instance.

The server's side: what the processes do is in `headrace/python_model/`, what passes between is in `src/child.rs`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.backend.base import DeviceInstance, Instance, ModelFile
from headrace.backend.python_process import ModelProcess, ProcessDownError, ProcessError
from headrace.config.model import ModelSignature, ModelSpec
from headrace.core.errors import ConfigError
from headrace.core.messages import to_json
from headrace.core.wire import Batch
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning
from headrace.observe.logs import Log

STARTING = "stub-timeout-seconds"
EXECUTING = "execute-timeout-seconds"
_START_S, _EXECUTE_S = 30.0, 300.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 10.0
"""Between attempts to start a process again."""
Ailing = Callable[[str | None], None]
"""Told why an instance cannot serve, and `None` when it can again."""


@dataclass(frozen=True)
class Place:
    """Where an instance runs."""

    name: str
    device: int | None
    """Its GPU; `None`: the CPU."""


class PythonModel:
    """A `model.py`."""

    signature: ModelSignature | None = None
    forwards: Mapping[int, int] = {}

    def __init__(self, file: ModelFile) -> None:
        self._file = file

    def complete(self, config: Any, log: Log) -> None:
        """Has the model complete its config, a `ModelConfig`, in place.

        Raises:
            ConfigError: with what the model said against the config.
        """
        process = ModelProcess(sys.executable, self._environment(), 1.0, log, f"model '{config.name}'")
        try:
            given = process.ask(
                {"complete": to_json(config), "file": str(self._file.path)}, self._seconds(STARTING, _START_S)
            )
        except ProcessError as error:
            raise ConfigError(f"{self._file.path}: auto_complete_config failed: {error}") from None
        finally:
            process.finish(0.0)
        if given["completed"] is not None:
            _take(config, given["completed"])

    def start_process(self, spec: ModelSpec, place: Place, log: Log, ailing: Ailing) -> PythonInstance:
        """Starts the process of an instance.

        Raises:
            ConfigError: when the model does not come up.
        """
        if spec.message.model_transaction_policy.decoupled:
            raise ConfigError(f"model '{spec.name}' is decoupled, which is not served yet: answer when execute returns")
        return PythonInstance(lambda: self._start(spec, place, log), place.name, ailing, log)

    def _start(self, spec: ModelSpec, place: Place, log: Log) -> ModelProcess:
        patience = self._seconds(EXECUTING, _EXECUTE_S)
        process = ModelProcess(sys.executable, self._environment(), patience, log, f"instance '{place.name}'")
        order = {
            "file": str(self._file.path),
            "instance": place.name,
            "inputs": [[tensor.name, tensor.dtype.name] for tensor in spec.inputs],
            "outputs": [[tensor.name, tensor.dtype.name] for tensor in spec.outputs],
            "args": self._arguments(spec, place),
        }
        try:
            process.ask(order, self._seconds(STARTING, _START_S))
        except ProcessError:
            process.finish(0.0)
            raise
        return process

    def _arguments(self, spec: ModelSpec, place: Place) -> dict[str, str]:
        """What `initialize` gets: all strings."""
        return {
            "model_config": json.dumps(to_json(spec.message)),
            "model_instance_kind": "CPU" if place.device is None else "GPU",
            "model_instance_name": place.name,
            "model_instance_device_id": str(place.device or 0),
            "model_repository": str(self._file.directory.parent),
            "model_version": self._file.directory.name,
            "model_name": spec.name,
        }

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _seconds(self, setting: str, default: float) -> float:
        return float(self._file.settings.get(setting, default))

    def start_instance(self, spec: ModelSpec, threads: int) -> Instance:  # noqa: ARG002
        """Never called: instances are processes."""
        raise AssertionError("a Python model runs in processes")

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:  # noqa: ARG002
        """Never called, either."""
        raise AssertionError("a Python model runs in processes")


class PythonInstance:
    """A process that is started again when it ends."""

    def __init__(self, start: Callable[[], ModelProcess], name: str, ailing: Ailing, log: Log) -> None:
        self._start = start
        self._name = name
        self._ailing = ailing
        self._log = log
        self._delay = _FIRST_DELAY_S
        self._stopping = threading.Event()
        self._why = ""
        try:
            self._process: ModelProcess | None = start()
        except ProcessError as error:
            raise ConfigError(f"instance '{name}': {error}") from None

    def execute(self, batch: Batch) -> tuple[int, int]:
        """Executes a batch; ns of the ends of *input* and *infer*.

        Raises:
            ProcessError: what became of the process; `revive` starts it again.
        """
        if self._process is None:
            raise ProcessDownError(f"is being started again: it {self._why}")
        try:
            return self._process.wire.execute(batch)
        except ValueError as error:
            why = self._process.end(str(error))
            self._process = None
            self._fail(why)
            raise ProcessError(why) from None

    def revive(self, somebody_waits: Callable[[], bool]) -> None:
        """Starts the process again, with longer and longer pauses. Gives up for now when somebody waits: an error is a
        better answer than none.
        """
        while self._process is None and not self._stopping.is_set():
            try:
                self._process = self._start()
            except ProcessError as error:
                self._fail(str(error))
                self._stopping.wait(self._delay)
                self._delay = min(2 * self._delay, _LONGEST_DELAY_S)
                if somebody_waits():
                    return
            else:
                self._delay = _FIRST_DELAY_S
                self._ailing(None)
                self._log.event(f"instance '{self._name}' was started again")

    def _fail(self, why: str) -> None:
        self._why = why
        self._ailing(f"its process {why}")
        self._log.error(f"instance '{self._name}': its process {why}")

    def stop(self) -> None:
        """Has the model finish, and the process end."""
        self._stopping.set()
        if self._process is not None:
            self._process.finish(_START_S)


def load(file: ModelFile) -> PythonModel:
    """Finds the file.

    Raises:
        ConfigError: when it is not there, or a setting of the backend is no number of seconds.
    """
    if not file.path.is_file():
        raise ConfigError(f"{file.path} does not exist")
    return PythonModel(file)


def _take(config: Any, completed: Mapping[str, Any]) -> None:
    """Puts what a model completed into its config."""
    from google.protobuf import json_format

    fresh = type(config)()
    try:
        json_format.ParseDict(dict(completed), fresh)
    except json_format.ParseError as error:
        raise ConfigError(f"auto_complete_config of model '{config.name}' gave what is no config: {error}") from None
    config.CopyFrom(fresh)
