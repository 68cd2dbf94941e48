"""Everything that is not an inference, over gRPC and HTTP, and as the real Triton has it."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException

from tests import models
from tests.doors.asking import ask
from tests.metrics import metrics_text
from tests.servers import RunningServer

EXTRA = """
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 100 }
"""


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1], max_batch=4, extra=EXTRA)
    models.identity(
        repository,
        "versions",
        "FP16",
        [2, -1],
        max_batch=0,
        extra="version_policy: { specific: { versions: [2, 10] } }",
    )
    for version in ("2", "10"):
        (repository / "versions" / version).mkdir()
    models.add_one(repository, "bare")
    return start(repository)


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    models.oracle_identity(repository, "echo", "FP32", [-1], max_batch=4, extra=EXTRA)
    return start_judge(repository)


def over_http(server: RunningServer, verb: str, *arguments: object):
    with httpclient.InferenceServerClient(server.http) as client:
        return getattr(client, verb)(*arguments)


def over_grpc(server: RunningServer, verb: str, *arguments: object):
    with grpcclient.InferenceServerClient(server.grpc) as client:
        return getattr(client, verb)(*arguments)


def test_health(server: RunningServer) -> None:
    for ask_server in (over_http, over_grpc):
        assert ask_server(server, "is_server_live")
        assert ask_server(server, "is_server_ready")
        assert ask_server(server, "is_model_ready", "echo")
        assert ask_server(server, "is_model_ready", "versions", "10")


def test_server_metadata(server: RunningServer) -> None:
    plain = over_http(server, "get_server_metadata")
    message = over_grpc(server, "get_server_metadata")
    assert (plain["name"], plain["version"]) == (message.name, message.version)
    assert plain["extensions"] == list(message.extensions)
    assert {"statistics", "model_configuration", "system_shared_memory", "binary_tensor_data"} <= set(
        plain["extensions"]
    )


def test_model_metadata(server: RunningServer) -> None:
    assert over_http(server, "get_model_metadata", "bare") == {
        "name": "bare",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, 4]}],
    }
    message = over_grpc(server, "get_model_metadata", "versions")
    assert list(message.versions) == ["2", "10"]
    assert list(message.inputs[0].shape) == [2, -1]


@pytest.mark.oracle
def test_model_metadata_and_config_as_the_real_triton(server: RunningServer, judge: RunningServer) -> None:
    ours, theirs = (over_http(one, "get_model_metadata", "echo") for one in (server, judge))
    assert {**ours, "platform": ""} == {**theirs, "platform": ""}
    ours, theirs = (over_http(one, "get_model_config", "echo") for one in (server, judge))
    differing = {
        "backend",
        "default_model_filename",
        "parameters",
        "runtime",
        "model_warmup",
        "instance_group",
    }
    assert {key: value for key, value in ours.items() if key not in differing} == {
        key: value for key, value in theirs.items() if key not in differing
    }
    assert ours["instance_group"][0].keys() == theirs["instance_group"][0].keys()
    assert [(group["name"], group["kind"], group["count"]) for group in ours["instance_group"]] == [
        (group["name"], group["kind"], group["count"]) for group in theirs["instance_group"]
    ]


@pytest.mark.oracle
def test_statistics_as_the_real_triton(server: RunningServer, judge: RunningServer) -> None:
    """Three good requests, two of them with two rows, and one that is refused: the same counts."""
    counts = []
    for one in (server, judge):
        with grpcclient.InferenceServerClient(one.grpc) as client:
            for rows in (1, 2, 2):
                ask(client, "echo", np.ones((rows, 3)))[0].result(30)
            assert ask(client, "echo", np.ones((9, 3)))[0].exception(30)
            row = client.get_inference_statistics("echo").model_stats[0]
        spans = json_format.MessageToDict(row.inference_stats, always_print_fields_with_no_presence=True)
        counts.append(
            {
                "rows": row.inference_count,
                "executions": row.execution_count,
                "spans": {name: span["count"] for name, span in spans.items()},
                "batches": [(batch.batch_size, batch.compute_infer.count) for batch in row.batch_stats],
            }
        )
        assert row.last_inference > 0
    assert counts[0] == counts[1]


def test_statistics_of_one_and_of_all(server: RunningServer) -> None:
    names = {row["name"] for row in over_http(server, "get_inference_statistics")["model_stats"]}
    assert names == {"echo", "versions", "bare"}
    rows = over_grpc(server, "get_inference_statistics", "versions").model_stats
    assert sorted(row.version for row in rows) == ["10", "2"]
    row = over_http(server, "get_inference_statistics", "bare", "1")["model_stats"][0]
    assert {
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    } == set(row["inference_stats"])


def test_the_index_lists_all_versions(server: RunningServer) -> None:
    rows = over_http(server, "get_model_repository_index")
    assert sorted((row["name"], row["version"], row["state"]) for row in rows) == [
        ("bare", "1", "READY"),
        ("echo", "1", "READY"),
        ("versions", "10", "READY"),
        ("versions", "2", "READY"),
    ]
    assert len(over_grpc(server, "get_model_repository_index").models) == 4


def test_versions_are_asked_by_number_and_the_highest_without(server: RunningServer) -> None:
    array = np.ones((2, 1), np.float16)
    with grpcclient.InferenceServerClient(server.grpc) as client:
        tensor = grpcclient.InferInput("INPUT0", [2, 1], "FP16")
        tensor.set_data_from_numpy(array)
        assert client.infer("versions", [tensor]).get_response().model_version == "10"
        assert client.infer("versions", [tensor], model_version="2").get_response().model_version == "2"


@pytest.mark.parametrize("ask_server", [over_http, over_grpc])
def test_unknown_models_and_versions(server: RunningServer, ask_server) -> None:
    for verb in ("get_model_metadata", "get_model_config"):
        with pytest.raises(InferenceServerException, match="'nope' is not found"):
            ask_server(server, verb, "nope")
        with pytest.raises(InferenceServerException, match="'echo' version 9 is not found"):
            ask_server(server, verb, "echo", "9")


@pytest.mark.parametrize("ask_server", [over_http, over_grpc])
def test_later_verbs_name_themselves(server: RunningServer, ask_server) -> None:
    for verb, arguments, name in [
        ("load_model", ("echo",), "RepositoryModelLoad"),
        ("unload_model", ("echo",), "RepositoryModelUnload"),
        ("get_trace_settings", (), "TraceSetting"),
        ("get_log_settings", (), "LogSettings"),
    ]:
        with pytest.raises(InferenceServerException, match=f"{name} is not served yet"):
            ask_server(server, verb, *arguments)


def test_the_metrics_page(server: RunningServer) -> None:
    text = metrics_text(server)
    for family in ("nv_inference_count", "nv_inference_queue_duration_us", "nv_inference_pending_request_count"):
        assert f'{family}{{model="bare",version="1"}}' in text
    assert "# TYPE nv_inference_count counter" in text
    assert "headrace_transfer_copied_bytes_total" in text
