"""What tensors come and go as: typed contents, raw entries, JSON, binary data, mixtures of them; judged by Triton."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests import models
from tests.doors.raw import call, message, post, post_json, refusal, tensor
from tests.servers import RunningServer

DTYPES = [
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
]
TWO = """
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: 2 }, { name: "B" data_type: TYPE_STRING dims: -1 } ]
output [ { name: "X" data_type: TYPE_FP32 dims: 2 }, { name: "Y" data_type: TYPE_STRING dims: -1 } ]
"""


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    from onnx import TensorProto, helper

    repository = tmp_path_factory.mktemp("models")
    for name in DTYPES:
        models.identity(repository, f"echo_{name}", name, [-1])
    models.identity(repository, "matrix", "FP32", [2, -1], max_batch=0)
    models.identity(repository, "open", "FP32", [-1, -1])
    models.identity(repository, "one_string", "STRING", [1])
    floats, strings = (TensorProto.FLOAT, ["rows", 2]), (TensorProto.STRING, ["rows", "any"])
    nodes = [helper.make_node("Identity", ["A"], ["X"]), helper.make_node("Identity", ["B"], ["Y"])]
    models.onnx_model(
        repository, "two", nodes, [("A", *floats), ("B", *strings)], [("X", *floats), ("Y", *strings)], TWO
    )
    return start(repository)


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    for name in DTYPES:
        models.oracle_identity(repository, f"echo_{name}", name, [-1])
    models.oracle_identity(repository, "matrix", "FP32", [2, -1], max_batch=0)
    models.oracle_identity(repository, "open", "FP32", [-1, -1])
    models.oracle_identity(repository, "one_string", "STRING", [1])
    models.oracle_python(repository, "two", TWO, '{"X": take("A"), "Y": take("B")}')
    return start_judge(repository)


TYPED = [
    ("BOOL", "bool_contents", [True, False]),
    ("INT8", "int_contents", [-128, 127]),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
    ("UINT8", "uint_contents", [0, 255]),
    ("UINT16", "uint_contents", [0, 2**16 - 1]),
    ("UINT32", "uint_contents", [0, 2**32 - 1]),
    ("UINT64", "uint64_contents", [0, 2**64 - 1]),
    ("FP32", "fp32_contents", [1.5, float("inf")]),
    ("FP64", "fp64_contents", [1e300, -0.1]),
    ("STRING", "bytes_contents", [b"", b"\xffa"]),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "field", "values"), TYPED, ids=[row[0] for row in TYPED])
def test_typed_contents_are_the_tensor(
    server: RunningServer, judge: RunningServer, name: str, field: str, values
) -> None:
    datatype = "BYTES" if name == "STRING" else name
    request = message(f"echo_{name}", ("INPUT0", datatype, [1, 2], {field: values}))
    ours, theirs = call(server, request), call(judge, request)
    assert ours == theirs
    assert len(ours.raw_output_contents) == 1


FLOATS, TEXT = np.array([1, 2], np.float32).tobytes(), b"\x01\x00\x00\x00a"
A, B = ("A", "FP32", [1, 2]), ("B", "BYTES", [1, 1])
TYPED_A, TYPED_B = {"fp32_contents": [1, 2]}, {"bytes_contents": [b"a"]}
TAKEN = {
    "all typed": message("two", (*A, TYPED_A), (*B, TYPED_B)),
    "all raw": message("two", (*A, {}), (*B, {}), raw=(FLOATS, TEXT)),
    "another order": message("two", (*B, {}), (*A, {}), raw=(TEXT, FLOATS), outputs=("Y", "X")),
    "surplus raw entries": message("two", (*A, {}), (*B, {}), raw=(FLOATS, TEXT, b"more")),
    "one output": message("two", (*A, TYPED_A), (*B, TYPED_B), outputs=("Y",)),
    "an output twice": message("two", (*A, TYPED_A), (*B, TYPED_B), outputs=("X", "X")),
    "parameters": message(
        "two", (*A, TYPED_A), (*B, TYPED_B), own="x", number=-5, real=1.5, flag=True, priority=0, timeout=9
    ),
    "sequence": message("two", (*A, TYPED_A), (*B, TYPED_B), sequence_id=7, sequence_start=True, sequence_end=True),
    "final response": message("two", (*A, TYPED_A), (*B, TYPED_B), triton_enable_empty_final_response=True),
}


@pytest.mark.oracle
@pytest.mark.parametrize("request_message", TAKEN.values(), ids=TAKEN)
def test_messages_that_are_taken(server: RunningServer, judge: RunningServer, request_message) -> None:
    assert call(server, request_message) == call(judge, request_message)


FP32 = ("INPUT0", "FP32", [1, 1])
REFUSED = [
    ("typed and raw", message("two", (*A, TYPED_A), (*B, {}), raw=(TEXT,)), "contents field must not be specified", ""),
    (
        "raw and typed",
        message("two", (*A, {}), (*B, TYPED_B), raw=(FLOATS,)),
        "contents field must not be specified",
        "",
    ),
    ("no content", message("echo_FP32", (*FP32, {})), "unable to find data for input tensor 'INPUT0'", ""),
    ("too few raw", message("two", (*A, {}), (*B, {}), raw=(FLOATS,)), "for input tensor 'B'", "names no tensor"),
    ("too few", message("echo_FP32", ("INPUT0", "FP32", [1, 3], {"fp32_contents": [1]})), "Expected 12, got 4", ""),
    ("too many", message("echo_FP32", (*FP32, {"fp32_contents": [1, 2]})), "Expected 4, got 8", ""),
    (
        "another field",
        message("echo_FP32", (*FP32, {"int_contents": [1]})),
        "of type 'INT32', expected datatype 'FP32'",
        "",
    ),
    (
        "two fields",
        message("echo_FP32", (*FP32, {"fp32_contents": [1], "int_contents": [1]})),
        "of type 'INT32', expected datatype 'FP32'",
        "",
    ),
    (
        "a type without a field",
        message("echo_FP16", ("INPUT0", "FP16", [1, 1], {"fp32_contents": [1]})),
        "unexpected explicit tensor data for input tensor 'INPUT0'",
        "",
    ),
    (
        "an unknown type",
        message("echo_FP32", ("INPUT0", "FP99", [1, 1], {"fp32_contents": [1]})),
        "unexpected explicit tensor data for input tensor 'INPUT0'",
        "",
    ),
    ("an unknown raw type", message("echo_FP32", ("INPUT0", "FP9", [1, 1], {}), raw=(b"1234",)), "expects 'FP32'", ""),
    (
        "an integer that is too large",
        message("echo_INT8", ("INPUT0", "INT8", [1, 1], {"int_contents": [128]})),
        "128 is out of the range of INT8",
        "cuts its upper bits off",
    ),
    (
        "an unsigned integer that is too large",
        message("echo_UINT16", ("INPUT0", "UINT16", [1, 1], {"uint_contents": [65536]})),
        "65536 is out of the range of UINT16",
        "cuts its upper bits off",
    ),
    ("too few strings", message("echo_STRING", ("INPUT0", "BYTES", [1, 2], TYPED_B)), "expected 2 string elements", ""),
    (
        "too many strings",
        message("echo_STRING", ("INPUT0", "BYTES", [1, 1], {"bytes_contents": [b"a", b"b"]})),
        "unexpected number of string elements",
        "",
    ),
    (
        "a negative priority",
        message("two", (*A, TYPED_A), (*B, TYPED_B), priority=-1),
        "'priority'",
        "",
    ),
    (
        "a text as priority",
        message("two", (*A, TYPED_A), (*B, TYPED_B), priority="1"),
        "'priority' parameter, expected",
        "",
    ),
    (
        "a text as timeout",
        message("two", (*A, TYPED_A), (*B, TYPED_B), timeout="1"),
        "'timeout' parameter, expected",
        "",
    ),
    (
        "a flag as sequence",
        message("two", (*A, TYPED_A), (*B, TYPED_B), sequence_id=True),
        "invalid value type for 'sequence_id' parameter, expected",
        "",
    ),
    (
        "a number as flag",
        message("two", (*A, TYPED_A), (*B, TYPED_B), sequence_start=1),
        "invalid value type for 'sequence_start' parameter, expected",
        "",
    ),
    (
        "a reserved key",
        message("two", (*A, TYPED_A), (*B, TYPED_B), triton_x=1),
        "parameter keys starting with 'triton_' are reserved",
        "",
    ),
    (
        "an unknown output",
        message("two", (*A, TYPED_A), (*B, TYPED_B), outputs=("Z",)),
        "unexpected inference output 'Z'",
        "",
    ),
    (
        "an input twice",
        message("echo_FP32", (*FP32, {"fp32_contents": [1]}), (*FP32, {"fp32_contents": [1]})),
        "already exists",
        "",
    ),
]


@pytest.mark.parametrize(("request_message", "words"), [row[1:3] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_messages_that_are_refused(server: RunningServer, request_message, words: str) -> None:
    code, text = refusal(server, request_message)
    assert (code, words in text) == ("INVALID_ARGUMENT", True), text


JUDGED = [row for row in REFUSED if not row[3]]


@pytest.mark.oracle
@pytest.mark.parametrize(("request_message", "words"), [row[1:3] for row in JUDGED], ids=[row[0] for row in JUDGED])
def test_messages_that_the_real_triton_refuses(judge: RunningServer, request_message, words: str) -> None:
    code, text = refusal(judge, request_message)
    assert (code, words in text) == ("INVALID_ARGUMENT", True), text


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["FP32", "FP64"])
def test_numbers_that_json_has_no_words_for(server: RunningServer, judge: RunningServer, name: str) -> None:
    text = '{"inputs":[{"name":"INPUT0","datatype":"TYPE","shape":[1,5],"data":[NaN,Infinity,[-Infinity],1.0,-2.5]}]}'
    text = text.replace("TYPE", name)
    ours, theirs = (post(each, f"echo_{name}", text.encode()) for each in (server, judge))
    assert ours == theirs
    assert '"data":[NaN,Infinity,-Infinity,1.0,-2.5]' in ours.text


@pytest.mark.oracle
def test_words_within_strings_stay(server: RunningServer, judge: RunningServer) -> None:
    text = b'{"id":"NaN \\" Infinity","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[NaN]}]}'
    assert post(server, "echo_FP32", text) == post(judge, "echo_FP32", text)


BOTH = [tensor("FP32", [1, 2], [1.0, 2.0], "A"), tensor("BYTES", [1, 1], ["a"], "B")]
BINARY_B = tensor("BYTES", [1, 1], None, "B", binary_data_size=5)
SERVED = {
    "json": ({"inputs": BOTH}, b""),
    "json and binary": ({"inputs": [BOTH[0], BINARY_B]}, TEXT),
    "some outputs binary": (
        {"inputs": BOTH, "outputs": [{"name": "Y"}, {"name": "X", "parameters": {"binary_data": True}}]},
        b"",
    ),
    "all outputs binary": ({"inputs": BOTH, "parameters": {"binary_data_output": True}}, b""),
    "all but one": (
        {
            "inputs": BOTH,
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "Y", "parameters": {"binary_data": False}}],
        },
        b"",
    ),
    "an output twice": (
        {"inputs": BOTH, "outputs": [{"name": "X"}, {"name": "X", "parameters": {"binary_data": True}}]},
        b"",
    ),
    "an id": ({"inputs": BOTH, "id": "x ü"}, b""),
    "an empty id": ({"inputs": BOTH, "id": ""}, b""),
    "no outputs named": ({"inputs": BOTH, "outputs": []}, b""),
    "unknown members": ({"inputs": BOTH, "more": {"x": [1]}}, b""),
    "nested data": (
        {"inputs": [tensor("FP32", [2, 2], [[1], [2, 3, 4]], "A"), tensor("BYTES", [2, 1], [["a"], "b"], "B")]},
        b"",
    ),
    "parameters": (
        {"inputs": BOTH, "parameters": {"x": "y", "n": -5, "r": 1.5, "b": True, "u": 2**63, "priority": 1}},
        b"",
    ),
    "sequence": ({"inputs": BOTH, "parameters": {"sequence_id": "s", "sequence_start": True, "timeout": 1}}, b""),
    "parameters of tensors": (
        {"inputs": [{**BOTH[0], "parameters": {"own": 1}}, BOTH[1]], "outputs": [{"name": "X"}]},
        b"",
    ),
}


@pytest.mark.oracle
@pytest.mark.parametrize(("request_json", "binary"), SERVED.values(), ids=SERVED)
def test_bodies_that_are_taken(server: RunningServer, judge: RunningServer, request_json, binary: bytes) -> None:
    ours, theirs = (post_json(each, "two", request_json, binary) for each in (server, judge))
    assert (ours.status, ours.json, ours.binary) == (200, theirs.json, theirs.binary)


def test_outputs_without_a_format_of_their_own_have_the_requests(server: RunningServer) -> None:
    """As the protocol says; the real Triton sends the outputs that are named as JSON."""
    answer = post_json(
        server, "two", {"inputs": BOTH, "parameters": {"binary_data_output": True}, "outputs": [{"name": "X"}]}
    )
    assert answer.binary == FLOATS


SIZE = "binary_data_size"
WRONG: list[tuple[str, str, dict | bytes, bytes, int, str, str]] = [
    # name, model, JSON, what follows it, status, words, how the real Triton differs
    (
        "a number as string",
        "echo_STRING",
        {"inputs": [tensor("BYTES", [1, 1], [1])]},
        b"",
        400,
        "Unable to parse 'data'",
        "500, another text",
    ),
    (
        "a null as string",
        "echo_STRING",
        {"inputs": [tensor("BYTES", [1, 1], [None])]},
        b"",
        400,
        "Unable to parse 'data'",
        "500, another text",
    ),
    (
        "a string as list",
        "echo_STRING",
        {"inputs": [tensor("BYTES", [1, 1], "a")]},
        b"",
        400,
        "Unable to parse 'data'",
        "500",
    ),
    (
        "a number as list",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], 1)]},
        b"",
        400,
        "Unable to parse 'data'",
        "500",
    ),
    (
        "a string as number",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], ["1"])]},
        b"",
        400,
        "Unable to parse 'data'",
        "500",
    ),
    (
        "a flag as number",
        "echo_INT8",
        {"inputs": [tensor("INT8", [1, 1], [True])]},
        b"",
        400,
        "Unable to parse 'data'",
        "500",
    ),
    (
        "a real as integer",
        "echo_INT8",
        {"inputs": [tensor("INT8", [1, 1], [1.5])]},
        b"",
        400,
        "Unable to parse 'data'",
        "500",
    ),
    (
        "a negative",
        "echo_UINT8",
        {"inputs": [tensor("UINT8", [1, 1], [-1])]},
        b"",
        400,
        "Unable to parse 'data'",
        "500",
    ),
    (
        "too large",
        "echo_INT8",
        {"inputs": [tensor("INT8", [1, 1], [128])]},
        b"",
        400,
        "Unable to parse 'data'",
        "cuts bits off",
    ),
    (
        "FP16",
        "echo_FP16",
        {"inputs": [tensor("FP16", [1, 1], [1])]},
        b"",
        400,
        "receiving FP16 data via JSON is not supported",
        "",
    ),
    (
        "FP16 as answer",
        "echo_FP16",
        {"inputs": [tensor("FP16", [1, 1], None, binary_data_size=2)]},
        b"12",
        400,
        "sending FP16 data via JSON is not supported",
        "",
    ),
    (
        "too few",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 3], [1])]},
        b"",
        400,
        "Expected 12, got 4",
        "500, another text",
    ),
    (
        "too few strings",
        "echo_STRING",
        {"inputs": [tensor("BYTES", [1, 3], ["a"])]},
        b"",
        400,
        "expected 3 string elements",
        "",
    ),
    ("no data", "echo_FP32", {"inputs": [tensor("FP32", [1, 1])]}, b"", 400, "must set only one of", ""),
    (
        "data twice",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], [1], binary_data_size=4)]},
        b"1234",
        400,
        "must set only one of",
        "",
    ),
    ("unknown type", "echo_FP32", {"inputs": [tensor("FP9", [1, 1], [1])]}, b"", 400, "invalid datatype for input", ""),
    (
        "surplus",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], None, binary_data_size=4)]},
        b"12345",
        400,
        "unexpected additional input data",
        "",
    ),
    (
        "cut",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], None, binary_data_size=4)]},
        b"123",
        400,
        "unexpected size for input 'INPUT0'",
        "",
    ),
    (
        "negative size",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], None, binary_data_size=-4)]},
        b"1234",
        400,
        SIZE,
        "500",
    ),
    (
        "size as text",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], None, binary_data_size="4")]},
        b"1234",
        400,
        SIZE,
        "500",
    ),
    (
        "id as number",
        "echo_FP32",
        {"id": 5, "inputs": []},
        b"",
        400,
        "failed to parse the request JSON",
        "500, another text",
    ),
    ("no inputs", "echo_FP32", {"id": "x"}, b"", 400, "inputs", "500"),
    (
        "inputs as object",
        "echo_FP32",
        {"inputs": {}},
        b"",
        400,
        "failed to parse the request JSON",
        "500, another text",
    ),
    ("empty inputs", "echo_FP32", {"inputs": []}, b"", 400, "missing required input(s) ['INPUT0']", ""),
    ("no name", "echo_FP32", {"inputs": [{"datatype": "FP32", "shape": [1], "data": [1]}]}, b"", 400, "name", "500"),
    ("no type", "echo_FP32", {"inputs": [{"name": "INPUT0", "shape": [1], "data": [1]}]}, b"", 400, "datatype", "500"),
    (
        "no shape",
        "echo_FP32",
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "data": [1]}]},
        b"",
        400,
        "shape",
        "500",
    ),
    (
        "shape of texts",
        "echo_FP32",
        {"inputs": [tensor("FP32", ["1", 1], [1])]},
        b"",
        400,
        "failed to parse the request JSON",
        "500, another text",
    ),
    (
        "negative shape",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, -1], [1])]},
        b"",
        400,
        "All input dimensions should be",
        "500, another text",
    ),
    ("null parameter", "two", {"inputs": BOTH, "parameters": {"a": None}}, b"", 400, "'a'", ""),
    ("list parameter", "two", {"inputs": BOTH, "parameters": {"a": [1]}}, b"", 400, "'a'", ""),
    (
        "reserved parameter",
        "two",
        {"inputs": BOTH, "parameters": {"triton_x": 1}},
        b"",
        400,
        "starting with 'triton_' are reserved",
        "",
    ),
    (
        "final response",
        "two",
        {"inputs": BOTH, "parameters": {"triton_enable_empty_final_response": True}},
        b"",
        400,
        "are reserved",
        "",
    ),
    ("negative priority", "two", {"inputs": BOTH, "parameters": {"priority": -1}}, b"", 400, "'priority'", "500"),
    ("timeout as text", "two", {"inputs": BOTH, "parameters": {"timeout": "1"}}, b"", 400, "'timeout'", "500"),
    (
        "sequence as flag",
        "two",
        {"inputs": BOTH, "parameters": {"sequence_id": True}},
        b"",
        400,
        "'sequence_id'",
        "500",
    ),
    ("flag as number", "two", {"inputs": BOTH, "parameters": {"sequence_end": 1}}, b"", 400, "'sequence_end'", "500"),
    (
        "binary as text",
        "two",
        {"inputs": BOTH, "parameters": {"binary_data_output": "x"}},
        b"",
        400,
        "'binary_data_output'",
        "500",
    ),
    (
        "an input twice",
        "echo_FP32",
        {"inputs": [tensor("FP32", [1, 1], [1])] * 2},
        b"",
        400,
        "'INPUT0' already exists in request",
        "",
    ),
    (
        "unknown output",
        "two",
        {"inputs": BOTH, "outputs": [{"name": "Z"}]},
        b"",
        400,
        "unexpected inference output 'Z'",
        "",
    ),
    (
        "different batches",
        "two",
        {"inputs": [BOTH[0], tensor("BYTES", [2, 1], ["a", "b"], "B")]},
        b"",
        400,
        "batch size does not match other inputs",
        "",
    ),
    (
        "no batch",
        "two",
        {"inputs": [tensor("FP32", [], [1], "A"), BOTH[1]]},
        b"",
        400,
        "has no shape but model requires batch dimension",
        "",
    ),
    (
        "a missing input",
        "two",
        {"inputs": BOTH[:1]},
        b"",
        400,
        "expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['A'], but missing required input(s) ['B']",
        "",
    ),
    (
        "a surplus input",
        "two",
        {"inputs": [*BOTH, tensor("FP32", [1, 1], [1], "C")]},
        b"",
        400,
        "expected 2 inputs but got 3 inputs",
        "",
    ),
    (
        "another input",
        "two",
        {"inputs": [BOTH[0], tensor("FP32", [1, 1], [1], "C")]},
        b"",
        400,
        "unexpected inference input 'C' for model 'two'",
        "",
    ),
]


@pytest.mark.parametrize(
    ("model", "request_json", "binary", "status", "words"), [row[1:6] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_bodies_that_are_refused(
    server: RunningServer, model: str, request_json, binary, status: int, words: str
) -> None:
    answer = post_json(server, model, request_json, binary)
    assert (answer.status, words in answer.error) == (status, True), answer.text


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("model", "request_json", "binary", "status", "words", "differs"),
    [row[1:] for row in WRONG],
    ids=[row[0] for row in WRONG],
)
def test_bodies_that_the_real_triton_refuses(
    judge, model: str, request_json, binary, status: int, words: str, differs: str
) -> None:
    """Where it calls a client's mistake its own (500) we do not."""
    answer = post_json(judge, model, request_json, binary)
    if differs == "cuts bits off":
        assert answer.status == 200
    elif differs.startswith("500"):
        assert answer.status == 500
    else:
        assert answer.status == status
    assert differs.endswith(("another text", "cuts bits off")) or words in answer.error, answer.text


RAW = [
    ("numbers", "echo_FP32", np.arange(3, dtype=np.float32).tobytes(), [1, 3]),
    ("whole shape", "matrix", np.arange(6, dtype=np.float32).tobytes(), [2, 3]),
    ("one string", "one_string", b"any \xff bytes", [1, 1]),
    ("nothing", "echo_FP32", b"", [1, 0]),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("model", "content", "shape"), [row[1:] for row in RAW], ids=[row[0] for row in RAW])
def test_a_body_that_is_one_input_and_nothing_else(
    server: RunningServer, judge: RunningServer, model: str, content, shape
) -> None:
    ours, theirs = (post(each, model, content, 0) for each in (server, judge))
    assert ours == theirs
    assert ours.json["outputs"][0]["shape"] == shape
    assert ours.binary.endswith(content)


@pytest.mark.parametrize(
    ("model", "content", "words"),
    [
        ("two", b"1234", "Raw request must only have 1 input"),
        ("open", b"1234", "can not be deduced"),
        ("echo_FP32", b"12345", "input byte size mismatch"),
        ("matrix", b"1234", "input byte size mismatch"),
    ],
)
@pytest.mark.oracle
def test_a_body_that_could_be_anything_is_refused(
    server: RunningServer, judge: RunningServer, model: str, content, words
) -> None:
    for each in (server, judge):
        answer = post(each, model, content, 0)
        assert (answer.status, words in answer.error) == (400, True), answer.text


def test_json_that_is_strict_is_not_read_twice(server: RunningServer) -> None:
    body = json.dumps({"inputs": [tensor("FP32", [1, 1], [1])], "id": "Infinity"}).encode()
    assert post(server, "echo_FP32", body).json["id"] == "Infinity"
    assert post(server, "echo_FP32", b'{"inputs": NaN}').status == 400


def test_what_the_real_triton_does_not_take(server: RunningServer) -> None:
    """And what it takes otherwise; `docs/differences.md` has the list."""
    flags = post_json(server, "echo_BOOL", {"inputs": [tensor("BOOL", [1, 3], [1, 0, True])]})
    assert flags.json["outputs"][0]["data"] == [True, False, True]
    words = post_json(server, "echo_FP32", {"inputs": [tensor("FP32", [1, 3], ["NaN", "Infinity", "-Infinity"])]})
    assert '"data":[NaN,Infinity,-Infinity]' in words.text
    assert '"data":[0.1]' in post_json(server, "echo_FP32", {"inputs": [tensor("FP32", [1, 1], [0.1])]}).text
    one = post(server, "echo_STRING", b"any", 0)
    assert (one.json["outputs"][0]["shape"], one.binary) == ([1, 1], b"\x03\x00\x00\x00any")
    code, text = refusal(server, message("two", (*A, TYPED_A), (*B, TYPED_B), timeout=-1))
    assert (code, "'timeout' parameter, expected" in text) == ("INVALID_ARGUMENT", True)
