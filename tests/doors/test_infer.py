"""Inference: the same answers through JSON, JSON+binary, gRPC and a system region, and the real Triton's."""

from __future__ import annotations

import json
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.core.dtype import DTYPES
from tests import models
from tests.doors.clients import DOORS, Door
from tests.servers import RunningServer

DTYPE_NAMES = list(DTYPES)


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    for name in DTYPE_NAMES:
        models.identity(repository, f"identity_{name}", name, [-1], max_batch=64)
    models.identity(repository, "whole", "FP32", [-1, -1], max_batch=0)
    models.add_one(repository, "add_one")
    models.nonzero(repository, "nonzero")
    return start(repository)


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    for name in DTYPE_NAMES:
        if name != "BF16":  # its Python backend has no such type
            models.oracle_identity(repository, f"identity_{name}", name, [-1], max_batch=64)
    return start_judge(repository)


def sample(name: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = DTYPES[name].numpy
    bits = np.random.default_rng(7).integers(0, 256, size=int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    if name == "BOOL":
        return (bits % 2).astype(bool).reshape(shape)
    values = bits.view(dtype).reshape(shape)
    if dtype.kind == "f":  # JSON carries numbers, not the bits of a NaN
        return np.where(np.isfinite(values), values, dtype.type(1.5))
    return values


def rounds_in_the_client(name: str, door: Door) -> bool:
    """tritonclient's JSON library reads FP64 one bit off; `test_json_numbers_are_exact` asks with another."""
    return name == "FP64" and door.name == "json"


@pytest.mark.parametrize("door", DOORS, ids=str)
@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_every_dtype_comes_back_bit_exact(server: RunningServer, door: Door, name: str) -> None:
    if not door.carries_all_dtypes and name in ("FP16", "BF16"):
        pytest.skip("JSON does not carry it")
    array = sample(name, (3, 5))
    if rounds_in_the_client(name, door):
        array = np.round(array / 1e300, 3)
    answer = door.infer(server, f"identity_{name}", {"INPUT0": array}, name)["OUTPUT0"]
    assert answer.tobytes() == array.tobytes()
    assert answer.shape == array.shape


@pytest.mark.parametrize("name", ["FP32", "FP64", "INT64", "UINT64"])
def test_json_numbers_are_exact(server: RunningServer, name: str) -> None:
    array = sample(name, (4, 8))
    tensor = {"name": "INPUT0", "datatype": name, "shape": [4, 8], "data": array.tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(
        f"http://{server.http}/v2/models/identity_{name}/infer", data=body, timeout=30
    ) as response:
        data = json.loads(response.read())["outputs"][0]["data"]
    assert np.array(data, array.dtype).tobytes() == array.tobytes()


@pytest.mark.oracle
@pytest.mark.parametrize("door", DOORS, ids=str)
@pytest.mark.parametrize("name", [name for name in DTYPE_NAMES if name != "BF16"])
def test_every_dtype_as_the_real_triton(server: RunningServer, judge: RunningServer, door: Door, name: str) -> None:
    if not door.carries_all_dtypes and name == "FP16":
        pytest.skip("JSON does not carry it")
    array = sample(name, (2, 4))
    if rounds_in_the_client(name, door):
        array = np.round(array / 1e300, 3)
    ours = door.infer(server, f"identity_{name}", {"INPUT0": array}, name)["OUTPUT0"]
    theirs = door.infer(judge, f"identity_{name}", {"INPUT0": array}, name)["OUTPUT0"]
    assert ours.tobytes() == theirs.tobytes()
    assert ours.shape == theirs.shape


@pytest.mark.parametrize("door", DOORS[:3], ids=str)
def test_empty_tensors(server: RunningServer, door: Door) -> None:
    answer = door.infer(server, "identity_FP32", {"INPUT0": np.zeros((2, 0), np.float32)}, "FP32")["OUTPUT0"]
    assert answer.shape == (2, 0)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    array=arrays.arrays(
        np.float32,
        st.tuples(st.integers(0, 9), st.integers(0, 9)),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    )
)
def test_whole_shapes_of_a_model_that_does_not_batch(server: RunningServer, array: np.ndarray) -> None:
    for door in DOORS[:3]:
        answer = door.infer(server, "whole", {"INPUT0": array}, "FP32")["OUTPUT0"]
        assert answer.tobytes() == array.tobytes()
        assert answer.shape == array.shape


@pytest.mark.parametrize("door", DOORS, ids=str)
def test_onnx_model_computes(server: RunningServer, door: Door) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    answer = door.infer(server, "add_one", {"INPUT0": array}, "FP32")["OUTPUT0"]
    np.testing.assert_array_equal(answer, array + 1)


@pytest.mark.parametrize("door", DOORS[:3], ids=str)
def test_output_shapes_that_depend_on_values(server: RunningServer, door: Door) -> None:
    for ones in (3, 5, 0, 5, 8, 3):
        array = np.zeros(8, np.float32)
        array[:ones] = 1
        answer = door.infer(server, "nonzero", {"INPUT0": array}, "FP32")["OUTPUT0"]
        np.testing.assert_array_equal(answer, [np.arange(ones)])


@pytest.mark.parametrize("door", [DOORS[1], DOORS[2]], ids=str)
def test_messages_over_4_mb(server: RunningServer, door: Door) -> None:
    array = np.arange(3_000_000, dtype=np.float32).reshape(1, -1)
    answer = door.infer(server, "identity_FP32", {"INPUT0": array}, "FP32")["OUTPUT0"]
    assert answer.tobytes() == array.tobytes()


def test_request_ids_come_back(server: RunningServer) -> None:
    array = np.ones((1, 2), np.float32)
    with grpcclient.InferenceServerClient(server.grpc) as client:
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(array)
        response = client.infer("identity_FP32", [tensor], request_id="id with ünicode").get_response()
    assert (response.id, response.model_name, response.model_version) == ("id with ünicode", "identity_FP32", "1")
    with httpclient.InferenceServerClient(server.http) as client:
        tensor = httpclient.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(array)
        assert client.infer("identity_FP32", [tensor], request_id="7").get_response()["id"] == "7"


def test_json_and_binary_mix_in_one_request(server: RunningServer) -> None:
    with httpclient.InferenceServerClient(server.http) as client:
        tensor = httpclient.InferInput("INPUT0", [1, 3], "INT32")
        tensor.set_data_from_numpy(np.array([[1, -2, 3]], np.int32), binary_data=False)
        result = client.infer("identity_INT32", [tensor])  # outputs default to binary
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), [[1, -2, 3]])
        assert result.get_response()["outputs"][0]["parameters"] == {"binary_data_size": 12}


def test_output_in_a_region_has_an_empty_raw_entry(server: RunningServer) -> None:
    """perf_analyzer crashes without it."""
    from tests.doors.clients import region

    with grpcclient.InferenceServerClient(server.grpc) as client, region(client, 64) as (name, _):
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, 64)
        response = client.infer("identity_FP32", [tensor], outputs=[wanted]).get_response()
    assert list(response.raw_output_contents) == [b""]
    assert not response.outputs[0].parameters
