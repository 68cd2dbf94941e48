"""Bad requests: a clear error with Triton's status and key words through every door, and the server lives."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests import models
from tests.doors.clients import DOORS, HTTP_OF, Arrays, Door, region
from tests.doors.raw import message, post_json, refusal, set_parameters
from tests.servers import RunningServer


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [4], max_batch=2)
    models.identity(repository, "whole", "FP32", [2, -1], max_batch=0)
    models.gather(
        repository, "gather", models.TOGETHER.format(size=1) + "max_batch_size: 8 instance_group { count: 1 }"
    )
    models.write_config(repository, "broken", 'backend: "nothing"')
    return start(repository, "--strict-readiness=false")


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    models.oracle_identity(repository, "echo", "FP32", [4], max_batch=2)
    models.oracle_identity(repository, "whole", "FP32", [2, -1], max_batch=0)
    return start_judge(repository)


def fp32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@dataclass(frozen=True)
class Mistake:
    name: str
    model: str
    inputs: Arrays
    status: str
    words: str
    datatype: str = "FP32"
    options: dict[str, object] = field(default_factory=dict)
    oracle_differs: str = ""

    def __str__(self) -> str:
        return self.name


GOOD = {"INPUT0": fp32(1, 4)}
MISTAKES = [
    Mistake("unknown model", "nope", GOOD, "404", "Request for unknown model: 'nope' is not found"),
    Mistake("unknown version", "echo", GOOD, "404", "'echo' version 9 is not found", options={"model_version": "9"}),
    Mistake(
        "version no number",
        "echo",
        GOOD,
        "400",
        "unable to parse/determine model version",
        options={"model_version": "one"},
        oracle_differs="its HTTP routes take digits only and answer 404 without a text of its own",
    ),
    Mistake("no input", "echo", {}, "400", "expected 1 inputs but got 0 inputs for model 'echo'"),
    Mistake(
        "two inputs",
        "echo",
        {**GOOD, "MORE": fp32(1, 4)},
        "400",
        "input 'MORE' for model 'echo'",
        oracle_differs="counts only",
    ),
    Mistake("wrong input name", "echo", {"IN": fp32(1, 4)}, "400", "unexpected inference input 'IN' for model 'echo'"),
    Mistake(
        "wrong dtype",
        "echo",
        {"INPUT0": np.zeros((1, 4), np.int32)},
        "400",
        "data-type is 'INT32', but model 'echo' expects 'FP32'",
        "INT32",
    ),
    Mistake(
        "wrong shape",
        "echo",
        {"INPUT0": fp32(1, 5)},
        "400",
        "unexpected shape for input 'INPUT0' for model 'echo'. Expected [-1,4], got [1,5]",
    ),
    Mistake(
        "missing batch dimension",
        "echo",
        {"INPUT0": fp32(4)},
        "400",
        "for 'echo'",
        oracle_differs="4 reads as batch size",
    ),
    Mistake(
        "batch too large", "echo", {"INPUT0": fp32(3, 4)}, "400", "inference request batch-size must be <= 2 for 'echo'"
    ),
    Mistake(
        "no batch", "echo", {"INPUT0": fp32()}, "400", "has no shape but model requires batch dimension for 'echo'"
    ),
    Mistake(
        "empty batch",
        "echo",
        {"INPUT0": fp32(0, 4)},
        "400",
        "inference request batch-size must be at least 1 for 'echo'",
        oracle_differs="takes it as a batch of one row and finds no bytes for it",
    ),
    Mistake("wrong whole shape", "whole", {"INPUT0": fp32(3, 1)}, "400", "Expected [2,-1], got [3,1]"),
]


@pytest.mark.parametrize("door", DOORS, ids=str)
@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_mistakes_get_their_error(server: RunningServer, door: Door, mistake: Mistake) -> None:
    status, text = (
        door.error(server, mistake.model, mistake.inputs, mistake.datatype, **mistake.options)
        if (mistake.inputs or door.name != "region")
        else (mistake.status, mistake.words)
    )
    assert (status, mistake.words in text) == (mistake.status, True), text
    door.infer(server, "echo", GOOD, "FP32")


@pytest.mark.oracle
@pytest.mark.parametrize("door", DOORS[1:3], ids=str)
@pytest.mark.parametrize("mistake", [mistake for mistake in MISTAKES if not mistake.oracle_differs], ids=str)
def test_mistakes_get_tritons_status(server: RunningServer, judge: RunningServer, door: Door, mistake: Mistake) -> None:
    ours = door.error(server, mistake.model, mistake.inputs, mistake.datatype, **mistake.options)
    theirs = door.error(judge, mistake.model, mistake.inputs, mistake.datatype, **mistake.options)
    assert ours[0] == theirs[0], (ours, theirs)
    assert mistake.words in theirs[1]


@pytest.mark.parametrize("door", DOORS[1:], ids=str)
def test_a_version_that_is_not_ready(server: RunningServer, door: Door) -> None:
    status, text = door.error(server, "broken", GOOD, "FP32", model_version="1")
    assert (status, "'broken' version 1 is not at ready state" in text) == ("503", True), text


@pytest.mark.parametrize("door", DOORS, ids=str)
def test_a_model_that_raises_costs_its_batch_only(server: RunningServer, door: Door) -> None:
    status, text = door.error(server, "gather", {"INPUT0": np.array([[9]], np.int64)}, "INT64", request_id="r1")
    assert status == "500"
    assert text.startswith("[request id: r1] instance 'gather_0_0' failed")
    if door.name != "region":  # its helper reads the output as the input's type
        answer = door.infer(server, "gather", {"INPUT0": np.array([[3]], np.int64)}, "INT64")["OUTPUT0"]
        assert answer == [[3.0]]


def test_output_names_are_checked(server: RunningServer) -> None:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        tensor = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(GOOD["INPUT0"])
        with pytest.raises(InferenceServerException, match=r"unexpected inference output 'OUT' .* it has 'OUTPUT0'"):
            client.infer("echo", [tensor], outputs=[grpcclient.InferRequestedOutput("OUT")])


def post(server: RunningServer, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{server.http}{path}", data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def infer_json(**changes: object) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], **changes}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"{", {}, "failed to parse the request JSON buffer"),
        (b"[]", {}, "failed to parse the request JSON buffer"),
        (b"", {}, "failed to parse the request JSON buffer"),
        (b"[" * 200_000, {}, "failed to parse the request JSON buffer"),
        (infer_json(data=[[[[1] * 4] * 1]]), {}, None),
        (infer_json(data=[1, 2, 3]), {}, "input byte size mismatch for input 'INPUT0'"),
        (infer_json(data=[1, 2, 3, "4"]), {}, "Unable to parse 'data' of input 'INPUT0' as FP32"),
        (infer_json(data=None), {}, "input 'INPUT0' must set only one of"),
        (infer_json(shape=[1, -4]), {}, "All input dimensions should be specified"),
        (infer_json(shape=[1, 2**62, 2**62]), {}, "unexpected shape"),
        (infer_json(datatype="FP99"), {}, "invalid datatype for input 'INPUT0': 'FP99'"),
        (infer_json(parameters={"binary_data_size": 16}), {}, "must set only one of"),
        (
            infer_json(),
            {"Inference-Header-Content-Length": "100000"},
            "invalid Inference-Header-Content-Length: 100000",
        ),
        (infer_json(), {"Inference-Header-Content-Length": "-1"}, "invalid Inference-Header-Content-Length"),
        (infer_json(), {"Inference-Header-Content-Length": "x"}, "invalid Inference-Header-Content-Length"),
        (
            infer_json() + b"1234",
            {"Inference-Header-Content-Length": str(len(infer_json()))},
            "unexpected additional input data",
        ),
    ],
)
def test_http_bodies_that_lie(server: RunningServer, body: bytes, headers: dict[str, str], words: str | None) -> None:
    status, text = post(server, "/v2/models/echo/infer", body, headers)
    if words is None:
        assert status == 200
    else:
        assert status in (400, 501)
        assert words in text


def test_http_paths_and_methods(server: RunningServer) -> None:
    assert post(server, "/v3", b"")[0] == 404
    assert post(server, "/v2/models/echo/nothing", b"")[0] == 404
    assert post(server, "/v2/models/echo", b"")[0] == 405
    assert post(server, "/v2/models/echo/generate", b"{}") == (501, "Generate is not served yet")
    assert post(server, "/v2/repository/models/echo/load", b"{}") == (501, "RepositoryModelLoad is not served yet")


def call_rpc(server: RunningServer, method: str, message: bytes) -> grpc.RpcError:
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as caught:
            call(message, timeout=30)
    return caught.value


SERVICE = "/inference.GRPCInferenceService"


def test_grpc_messages_that_lie(server: RunningServer) -> None:
    error = call_rpc(server, f"{SERVICE}/ModelInfer", b"\xff" * 50)
    assert (error.code().name, "failed to parse ModelInferRequest" in error.details()) == ("INVALID_ARGUMENT", True)
    error = call_rpc(server, f"{SERVICE}/ModelConfig", b"\xff" * 50)
    assert (error.code().name, "failed to parse ModelConfigRequest" in error.details()) == ("INVALID_ARGUMENT", True)
    error = call_rpc(server, f"{SERVICE}/Nothing", b"")
    assert (error.code().name, "Nothing is not served" in error.details()) == ("UNIMPLEMENTED", True)
    error = call_rpc(server, f"{SERVICE}/TraceSetting", b"")
    assert (error.code().name, error.details()) == ("UNIMPLEMENTED", "TraceSetting is not served yet")


def infer_request(**parameters: object) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="echo")
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    for key, value in parameters.items():
        kind = {int: "int64_param", str: "string_param", bool: "bool_param"}[type(value)]
        setattr(tensor.parameters[key], kind, value)
    return request


@pytest.mark.parametrize(
    ("request_message", "code", "words"),
    [
        (infer_request(), "INVALID_ARGUMENT", "unable to find data for input tensor 'INPUT0'"),
        (infer_request(shared_memory_region="r"), "INVALID_ARGUMENT", "'shared_memory_byte_size' must be specified"),
        (infer_request(shared_memory_byte_size=4), "INVALID_ARGUMENT", "need 'shared_memory_region'"),
        (
            infer_request(shared_memory_region=4, shared_memory_byte_size=4),
            "INVALID_ARGUMENT",
            "expected a string_param",
        ),
        (infer_request(shared_memory_region="r", shared_memory_byte_size=-4), "INVALID_ARGUMENT", "not negative"),
        (
            infer_request(shared_memory_region="r", shared_memory_byte_size=16),
            "NOT_FOUND",
            "Unable to find shared memory region: 'r'",
        ),
    ],
)
def test_grpc_region_references_are_checked(server: RunningServer, request_message, code: str, words: str) -> None:
    error = call_rpc(server, f"{SERVICE}/ModelInfer", request_message.SerializeToString())
    assert error.code().name == code
    assert words in error.details()


def test_the_error_table_is_the_one_of_the_wire() -> None:
    from headrace.core.errors import Kind
    from headrace.core.wire import error_table

    assert [name for name, _, _ in error_table()] == list(Kind)
    for kind, code, status in error_table():
        name = next(value.name for value in grpc.StatusCode if value.value[0] == code)
        expected = "403" if kind == Kind.RESTRICTED else HTTP_OF.get(f"StatusCode.{name}", "400")
        assert expected == str(status), kind


REGION_MISTAKES = [
    # name, parameters of the input, of the output, status, words
    ("unknown region", {"shared_memory_region": "none"}, {}, "404", "Unable to find shared memory region: 'none'"),
    ("offset behind the end", {"shared_memory_offset": 64}, {}, "400", "Invalid offset for shared memory region"),
    (
        "end behind the end",
        {"shared_memory_offset": 52},
        {},
        "400",
        "Invalid offset + byte size for shared memory region",
    ),
    ("too many bytes", {"shared_memory_byte_size": 20}, {}, "400", "Expected 16, got 20"),
    ("too few bytes", {"shared_memory_byte_size": 12}, {}, "400", "Expected 16, got 12"),
    (
        "unknown output region",
        {},
        {"shared_memory_region": "none"},
        "404",
        "Unable to find shared memory region: 'none'",
    ),
    ("output behind the end", {}, {"shared_memory_offset": 64}, "400", "Invalid offset for shared memory region"),
    ("output too small", {}, {"shared_memory_byte_size": 8}, "500", "should be at least 16 bytes to hold the results"),
]


def region_mistake(server: RunningServer, over: str, given: dict, wanted: dict) -> tuple[str, str]:
    """Status, as HTTP has it, and text for an input and an output in a region of 64 bytes, but for these parameters."""
    with grpcclient.InferenceServerClient(server.grpc) as client, region(client, 64) as (name, _):
        good = {"shared_memory_region": name, "shared_memory_byte_size": 16}
        given, wanted = {**good, **given}, {**good, "shared_memory_offset": 16, **wanted}
        if over == "http":
            inputs = [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": given}]
            answer = post_json(
                server, "echo", {"inputs": inputs, "outputs": [{"name": "OUTPUT0", "parameters": wanted}]}
            )
            return str(answer.status), answer.error
        request = message("echo", ("INPUT0", "FP32", [1, 4], {}), outputs=(("OUTPUT0", wanted),))
        set_parameters(request.inputs[0].parameters, given)
        code, text = refusal(server, request)
        return HTTP_OF[f"StatusCode.{code}"], text


@pytest.mark.oracle
@pytest.mark.parametrize("over", ["http", "grpc"])
@pytest.mark.parametrize(
    ("given", "wanted", "status", "words"),
    [row[1:] for row in REGION_MISTAKES],
    ids=[row[0] for row in REGION_MISTAKES],
)
def test_region_mistakes_are_those_of_the_real_triton(
    server, judge, over: str, given, wanted, status, words: str
) -> None:
    for each in (server, judge):
        got, text = region_mistake(each, over, given, wanted)
        assert (got, words in text) == (status, True), text
