"""The life of the process: start the model, execute batches, finish it."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import channel, pb_utils
from .channel import ANSWERS, ASKED, BLOCK, CANCELLED, EXECUTE, GROW, Asked, Channel, Message, Place
from .errors import TritonError, TritonModelException, kind_of
from .objects import Objects
from .requests import InferenceRequest, InferenceResponse
from .side import Side, open_side
from .tensors import Tensor, serialize, wire_type

_ALIGNMENT = 64


def run(main: int, side: int) -> None:
    """Serves one instance until the server closes the connection, or completes a config."""
    sys.modules["triton_python_backend_utils"] = pb_utils
    beside = open_side(side)
    order = beside.receive()
    if order is None:
        return
    try:
        if "complete" in order:
            beside.send(completed=complete(order))
            return
        instance = start(order)
    except BaseException:  # noqa: BLE001 - whatever a model raises is told to who loads it
        beside.send(failed=_told(traceback.format_exc()))
        return
    threading.Thread(target=_end_with_server, args=(beside,), daemon=True).start()
    beside.send(ready=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the server, which ends this process
    Loop(Channel(main), instance, order["instance"], order["inputs"], order["outputs"]).run()
    if hasattr(instance, "finalize"):
        instance.finalize()


def _end_with_server(beside: Side) -> None:
    """The server is gone, or gave this process up: nobody waits for what it does."""
    while beside.receive() is not None:
        pass
    os._exit(1)


def complete(order: dict[str, Any]) -> dict[str, Any] | None:
    """The config as the model completes it; `None` when it does not."""
    model = _model_class(order["file"])
    function = getattr(model, "auto_complete_config", None)
    if function is None:
        return None
    completed = function(pb_utils.ModelConfig(order["complete"]))
    if not isinstance(completed, pb_utils.ModelConfig):
        kind = type(completed).__name__
        raise TypeError(f"auto_complete_config must return the ModelConfig, got {kind}")
    return completed.as_dict()


def start(order: dict[str, Any]) -> Any:
    """The model's object, initialized."""
    model = _model_class(order["file"])
    if not hasattr(model, "execute"):
        raise AttributeError(f"{order['file']}: class TritonPythonModel has no function 'execute'")
    instance = model()
    if hasattr(instance, "initialize"):
        instance.initialize(order["args"])
    return instance


def _model_class(file: str) -> Any:
    path = Path(file)
    pb_utils._directory = str(path.parent)
    for folder in (path.parent.parent, path.parent):
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "TritonPythonModel"):
        raise AttributeError(f"{file} has no class 'TritonPythonModel'")
    return module.TritonPythonModel


def _told(text: str) -> str:
    """A traceback without our own frames."""
    return text.strip()


class Loop:
    """Batches in, answers out."""

    def __init__(
        self, connection: Channel, model: Any, name: str, inputs: list[list[str]], outputs: list[list[str]]
    ) -> None:
        self._channel = connection
        self._execute: Callable[[list[InferenceRequest]], Any] = model.execute
        self._is_async = inspect.iscoroutinefunction(model.execute)
        self._name = name
        self._inputs = inputs
        self._output_names = [name for name, _ in outputs]
        self._objects = Objects()

    def run(self) -> None:
        """Until the server closes the connection."""
        while (message := self._channel.receive()) is not None:
            if message.kind != EXECUTE:
                raise RuntimeError(f"message {message.kind} came where a batch was expected")
            self._serve(message)

    def _serve(self, message: Message) -> None:
        self._objects.update(message.objects, message.retired)
        fields = message.fields
        block = fields.number()
        asked = [fields.request() for _ in range(fields.count())]
        answers = self._answers(asked)
        self._channel.send(ANSWERS, channel.count(len(asked)), *self._written(asked, answers, block))

    def _answers(self, asked: list[Asked]) -> list[Any]:
        """What the model makes of each request: a response, or the error that there is instead."""
        try:
            requests = [self._request(number, one) for number, one in enumerate(asked)]
        except OSError as error:
            return [TritonError(str(error), TritonError.INVALID_ARG)] * len(asked)
        try:
            responses = self._execute(requests)
            if self._is_async:
                responses = asyncio.run(responses)
            self._check(responses, len(asked))
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            return [TritonError(self._failed(error))] * len(asked)
        return list(responses)

    def _check(self, responses: Any, wanted: int) -> None:
        if not isinstance(responses, list):
            raise TritonModelException(f"Expected a list in the execute return, found type '{type(responses)}'.")
        if len(responses) != wanted:
            raise TritonModelException(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{wanted}, and InferenceResponse(s) size is:{len(responses)}"
            )
        for response in responses:
            if not isinstance(response, InferenceResponse):
                raise TritonModelException(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )

    def _failed(self, error: BaseException) -> str:
        text = f"Failed to process the request(s) for model instance '{self._name}', message: "
        text += f"{type(error).__name__}: {error}"
        places = [
            f"  {frame.filename}({frame.lineno}): {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).parent != Path(__file__).parent
        ]
        return text + ("\n\nAt:\n" + "\n".join(places) + "\n" if places else "")

    def _request(self, number: int, asked: Asked) -> InferenceRequest:
        tensors = [self._input(place) for place in asked.inputs]
        names = self._output_names
        outputs = [names[place.position] for place in asked.outputs]
        return InferenceRequest.of_client(
            asked.id, asked.parameters, tensors, outputs, lambda: self._is_cancelled(number)
        )

    def _input(self, place: Place) -> Tensor:
        name, dtype = self._inputs[place.position]
        memory = self._objects.memory(place.object)
        owned = place.object >= channel.FIRST_BLOCK
        return Tensor.of_input(name, dtype, place.shape, memory, place.offset, place.nbytes, owned)

    def _is_cancelled(self, number: int) -> bool:
        self._channel.send(CANCELLED, channel.count(number))
        message = self._channel.receive()
        if message is None or message.kind != ASKED:
            return True
        return bool(message.fields.byte())

    def _written(self, asked: list[Asked], answers: list[Any], block: int) -> list[bytes]:
        """The answers as bytes, after their outputs are where they are wanted."""
        prepared = [self._prepared(one, answer) for one, answer in zip(asked, answers)]
        needed = sum(
            _aligned(nbytes)
            for rows in prepared
            if isinstance(rows, list)
            for place, _, _, nbytes in rows
            if not place.object
        )
        if needed > self._objects.size(block):
            block = self._grow(needed)
        at, written = 0, []
        for rows in prepared:
            if isinstance(rows, bytes):
                written.append(rows)
                continue
            written.append(b"\0" + channel.count(len(rows)))
            for place, tensor, data, nbytes in rows:
                in_region = place.object != 0
                offset = place.offset if in_region else at
                if not in_region:
                    self._write(block, offset, data)
                    at += _aligned(nbytes)
                elif nbytes <= place.nbytes:  # the server says so where it is not
                    self._write(place.object, offset, data)
                shape = tensor.shape()
                written.append(channel.output(place.position, wire_type(tensor), in_region, offset, nbytes, shape))
        return written

    def _prepared(self, asked: Asked, answer: Any) -> bytes | list[tuple[Place, Tensor, Any, int]]:
        """An error, or the outputs that are wanted with the bytes to be written."""
        error = answer if isinstance(answer, TritonError) else answer.error()
        if error is not None:
            return channel.error(kind_of(error), error.message())
        try:
            return self._outputs(asked, answer)
        except Exception as failed:  # noqa: BLE001 - a tensor of the model's may be anything
            return channel.error("INTERNAL", self._failed(failed))

    def _outputs(self, asked: Asked, response: InferenceResponse) -> list[tuple[Place, Tensor, Any, int]]:
        wanted = {self._output_names[place.position]: place for place in asked.outputs}
        rows = []
        for tensor in response.output_tensors():
            place = wanted.get(tensor.name())
            if place is None:
                continue
            data: Any = tensor._array  # BF16 has no public one
            if wire_type(tensor) == "BYTES":
                data = np.frombuffer(serialize(data), np.uint8)
            rows.append((place, tensor, data, int(data.nbytes)))
        return rows

    def _write(self, number: int, offset: int, data: np.ndarray[Any, Any]) -> None:
        if data.nbytes:
            np.copyto(np.ndarray(data.shape, data.dtype, self._objects.memory(number), offset), data)

    def _grow(self, needed: int) -> int:
        self._channel.send(GROW, channel.number(needed))
        message = self._channel.receive()
        if message is None or message.kind != BLOCK:
            raise RuntimeError("the server gave no memory for outputs")
        self._objects.update(message.objects, message.retired)
        return message.fields.number()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
