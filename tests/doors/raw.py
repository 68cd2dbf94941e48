"""Requests as they are on the wire, for what `tritonclient` would not send."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.servers import RunningServer

Request = service_pb2.ModelInferRequest


@dataclass(frozen=True)
class HttpAnswer:
    """Status, JSON and what follows it."""

    status: int
    text: str
    binary: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        return self.json["error"]


def post(server: RunningServer, model: str, body: bytes, json_length: int | None = None) -> HttpAnswer:
    """An infer call; `json_length`: bytes of the body that are JSON, all where it is not given."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    headers = {} if json_length is None else {"Inference-Header-Content-Length": str(json_length)}
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    response = connection.getresponse()
    content = response.read()
    length = int(response.getheader("Inference-Header-Content-Length") or len(content))
    connection.close()
    return HttpAnswer(response.status, content[:length].decode(), content[length:])


def post_json(server: RunningServer, model: str, request: dict, binary: bytes = b"") -> HttpAnswer:
    """The same from a JSON object and the binary tensors behind it."""
    text = json.dumps(request).encode()
    return post(server, model, text + binary, len(text))


def tensor(datatype: str, shape: list[int], data: object = None, name: str = "INPUT0", **parameters: object) -> dict:
    """An input of a JSON request."""
    made = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        made["data"] = data
    return {**made, "parameters": parameters} if parameters else made


def message(
    model: str, *inputs: tuple, outputs: tuple = (), raw: tuple[bytes, ...] = (), **parameters: object
) -> Request:
    """A request of gRPC: inputs are (name, datatype, shape, contents by field), outputs names or (name, parameters)."""
    request = Request(model_name=model)
    for name, datatype, shape, contents in inputs:
        made = request.inputs.add(name=name, datatype=datatype, shape=shape)
        for field, values in contents.items():
            getattr(made.contents, field).extend(values)
    for output in outputs:
        name, own = output if isinstance(output, tuple) else (output, {})
        set_parameters(request.outputs.add(name=name).parameters, own)
    request.raw_input_contents.extend(raw)
    set_parameters(request.parameters, parameters)
    return request


def set_parameters(parameters: object, values: dict[str, object]) -> None:
    """Each as the kind of parameter that its type has."""
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for key, value in values.items():
        setattr(parameters[key], kinds[type(value)], value)


def call(server: RunningServer, request: Request) -> service_pb2.ModelInferResponse:
    """The answer; raises `grpc.RpcError`."""
    with grpc.insecure_channel(server.grpc) as channel:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)


def refusal(server: RunningServer, request: Request) -> tuple[str, str]:
    """Name of the status and text of the error that a request must get."""
    try:
        answer = call(server, request)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError(f"there was no error but {answer}")
