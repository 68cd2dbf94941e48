"""The doors of a server, all with one face: unmodified `tritonclient` behind each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor, serialize_byte_tensor
from tritonclient.utils import shared_memory as shm

from tests.servers import RunningServer

Arrays = dict[str, np.ndarray]

HTTP_OF = {
    "StatusCode.INVALID_ARGUMENT": "400",
    "StatusCode.NOT_FOUND": "404",
    "StatusCode.INTERNAL": "500",
    "StatusCode.UNAVAILABLE": "503",
    "StatusCode.UNIMPLEMENTED": "501",
    "StatusCode.ALREADY_EXISTS": "400",
    "StatusCode.CANCELLED": "400",
}
"""The HTTP status of the error that has this gRPC status."""


@dataclass(frozen=True)
class Door:
    """One way to ask."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def carries_all_dtypes(self) -> bool:
        """JSON has no FP16 and BF16."""
        return self.name != "json"

    def infer(self, server: RunningServer, model: str, inputs: Arrays, datatype: str, **options: object) -> Arrays:
        """All outputs of one inference; inputs and outputs travel as the door has them."""
        if self.name == "grpc":
            return _grpc(server, model, inputs, datatype, **options)
        if self.name == "region":
            return _region(server, model, inputs, datatype, **options)
        return _http(server, model, inputs, datatype, binary=self.name == "binary", **options)

    def error(
        self, server: RunningServer, model: str, inputs: Arrays, datatype: str, **options: object
    ) -> tuple[str, str]:
        """Status (as HTTP has it) and text of the error that such an inference must get."""
        try:
            self.infer(server, model, inputs, datatype, **options)
        except InferenceServerException as error:
            status = str(error.status())
            return HTTP_OF.get(status, status), error.message()
        raise AssertionError("there was no error")


DOORS = [Door(name) for name in ("json", "binary", "grpc", "region")]


def _grpc(server: RunningServer, model: str, inputs: Arrays, datatype: str, **options: object) -> Arrays:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        tensors = []
        for name, array in inputs.items():
            tensor = grpcclient.InferInput(name, list(array.shape), datatype)
            tensor._raw_content = packed(array)
            tensors.append(tensor)
        result = client.infer(model, tensors, **options)
        return _outputs(result, [output.name for output in result.get_response().outputs])


def _http(server: RunningServer, model: str, inputs: Arrays, datatype: str, binary: bool, **options: object) -> Arrays:
    with httpclient.InferenceServerClient(server.http) as client:
        tensors = []
        for name, array in inputs.items():
            tensor = httpclient.InferInput(name, list(array.shape), datatype)
            if binary:
                tensor._raw_data = packed(array)
                tensor._parameters["binary_data_size"] = len(tensor._raw_data)
            else:
                tensor._data = [_json(element) for element in array.ravel().tolist()]
            tensors.append(tensor)
        if not binary and "outputs" not in options:
            # Without requested outputs the client asks for binary ones.
            metadata = client.get_model_metadata(model)
            options["outputs"] = [
                httpclient.InferRequestedOutput(o["name"], binary_data=False) for o in metadata["outputs"]
            ]
        result = client.infer(model, tensors, **options)
        return _outputs(result, [output["name"] for output in result.get_response()["outputs"]])


def _region(server: RunningServer, model: str, inputs: Arrays, datatype: str, **options: object) -> Arrays:
    """One region holds all inputs and, behind them, as many bytes again for each output."""
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        region(client, 2 * _nbytes(inputs) + 64) as (name, handle),
    ):
        tensors, at = [], 0
        for tensor_name, array in inputs.items():
            content = packed(array)
            shm.set_shared_memory_region(handle, [np.frombuffer(content, np.uint8)], offset=at)
            tensor = grpcclient.InferInput(tensor_name, list(array.shape), datatype)
            tensor.set_shared_memory(name, len(content), at)
            tensors.append(tensor)
            at += len(content)
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, _nbytes(inputs), at)
        result = client.infer(model, tensors, outputs=[wanted], **options)
        output = result.get_response().outputs[0]
        count = int(np.prod(output.shape))
        if output.datatype == "BYTES":
            elements = deserialize_bytes_tensor(bytes(memoryview(handle._mpsm_handle.buf)[at : at + _nbytes(inputs)]))
            return {"OUTPUT0": elements.reshape(list(output.shape))}
        itemsize = next(iter(inputs.values())).itemsize
        data = bytes(memoryview(handle._mpsm_handle.buf)[at : at + count * itemsize])
        dtype = next(iter(inputs.values())).dtype
        return {"OUTPUT0": np.frombuffer(data, dtype).reshape(list(output.shape))}


def _nbytes(arrays: Arrays) -> int:
    return sum(len(packed(array)) for array in arrays.values())


def packed(array: np.ndarray) -> bytes:
    """The bytes of a tensor; an array of objects is a BYTES tensor."""
    if array.dtype != np.object_:
        return array.tobytes()
    return serialize_byte_tensor(array).item() if array.size else b""


def _json(element: object) -> object:
    return element.decode() if isinstance(element, bytes) else element


def _outputs(result: object, names: list[str]) -> Arrays:
    return {name: _encoded(result.as_numpy(name)) for name in names}


def _encoded(array: np.ndarray) -> np.ndarray:
    """Strings as bytes: that is what they are, but the client leaves those of JSON as text."""
    if array.dtype != np.object_:
        return array
    elements = [element.encode() if isinstance(element, str) else element for element in array.ravel()]
    encoded = np.empty(len(elements), dtype=object)
    encoded[:] = elements
    return encoded.reshape(array.shape)


@contextmanager
def region(client: object, size: int) -> Iterator[tuple[str, object]]:
    """A registered region with a name and key of its own."""
    name = f"headrace_test_{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, f"/{name}", size)
    try:
        client.register_system_shared_memory(name, f"/{name}", size)
        yield name, handle
        unregister(client, name)
    finally:
        shm.destroy_shared_memory_region(handle)


def unregister(client: object, name: str) -> None:
    """The real Triton 24.10 refuses while it still counts the request that it has just answered."""
    while True:
        try:
            return client.unregister_system_shared_memory(name)
        except InferenceServerException as error:
            if "currently in use" not in error.message():
                raise
