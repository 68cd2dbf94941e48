"""Statistics: what each number counts, by Headrace and by the real Triton alike; the numbers of one moment agree."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, wait

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from tests import models
from tests.doors.asking import ask, until_waiting
from tests.servers import RunningServer

FOURS = models.TOGETHER.format(size=4)
LOOK_UP = """
input { name: "INPUT0" data_type: TYPE_INT64 dims: [1] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }
max_batch_size: 8
"""
SPANS = ("queue", "compute_input", "compute_infer", "compute_output")
BAD = 9
"""An index that is not in the table: the model fails."""


@pytest.fixture(scope="module")
def headrace(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    for name in ("echo", "busy"):
        models.identity(repository, name, "FP32", [-1])
    for name in ("fours", "cancel"):
        models.identity(repository, name, "FP32", [-1], extra=FOURS)
    models.gather(repository, "look_up", LOOK_UP)
    models.gather(repository, "pairs", LOOK_UP + models.TOGETHER.format(size=2))
    models.gather(repository, "mixed", LOOK_UP + "dynamic_batching { }")
    models.identity(repository, "versions", "FP32", [-1], extra="version_policy { all { } }")
    (repository / "versions" / "3").mkdir()
    return start(repository)


@pytest.fixture(scope="module")
def oracle(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    models.oracle_identity(repository, "echo", "FP32", [-1])
    for name in ("fours", "cancel"):
        models.oracle_identity(repository, name, "FP32", [-1], extra=FOURS)
    look_up = '{"OUTPUT0": np.arange(4, dtype=np.float32)[take("INPUT0")]}'
    models.oracle_python(repository, "look_up", LOOK_UP, look_up)
    models.oracle_python(repository, "pairs", LOOK_UP + models.TOGETHER.format(size=2), look_up)
    models.oracle_identity(repository, "versions", "FP32", [-1], extra="version_policy { all { } }")
    (repository / "versions" / "3").mkdir()
    (repository / "versions" / "3" / "model.py").write_text(models.ORACLE_IDENTITY)
    return start_judge(repository)


@pytest.fixture(params=["headrace", pytest.param("oracle", marks=pytest.mark.oracle)])
def server(request) -> RunningServer:
    return request.getfixturevalue(request.param)


@pytest.fixture
def client(server: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def look_up(client: grpcclient.InferenceServerClient, model: str, indices: list[int]) -> Future:
    """A request of one row for each index."""
    future: Future = Future()
    tensor = grpcclient.InferInput("INPUT0", [len(indices), 1], "INT64")
    tensor.set_data_from_numpy(np.array(indices, np.int64).reshape(-1, 1))
    client.async_infer(model, [tensor], lambda result, error: future.set_result(error))  # noqa: ARG005
    return future


def statistics(client: grpcclient.InferenceServerClient, model: str, version: str = ""):
    return client.get_inference_statistics(model, version).model_stats[0]


def booked(client: grpcclient.InferenceServerClient, model: str, requests: int, version: str = ""):
    """The statistics once so many requests are counted: Triton answers some of them before it counts them."""
    while True:
        row = statistics(client, model, version)
        if row.inference_stats.success.count + row.inference_stats.fail.count >= requests:
            return row


def counts(row) -> dict[str, object]:
    spans = json_format.MessageToDict(
        row.inference_stats, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {
        "rows": row.inference_count,
        "executions": row.execution_count,
        **{name: int(span["count"]) for name, span in spans.items()},
        "batches": [
            (batch.batch_size, batch.compute_input.count, batch.compute_infer.count, batch.compute_output.count)
            for batch in row.batch_stats
        ],
    }


def expected(rows: int, executions: int, success: int, fail: int, batches: list[tuple[int, int]]) -> dict[str, object]:
    return {
        "rows": rows,
        "executions": executions,
        "success": success,
        "fail": fail,
        **dict.fromkeys(SPANS, success),
        "cache_hit": 0,
        "cache_miss": 0,
        "batches": [(size, count, count, count) for size, count in batches],
    }


def test_before_the_first_request_all_is_zero(client) -> None:
    row = statistics(client, "versions", "1")
    assert counts(row) == expected(0, 0, 0, 0, [])
    assert row.last_inference == 0


def test_rows_requests_and_executions(client) -> None:
    for rows in (1, 2, 2, 3):
        ask(client, "echo", np.ones((rows, 3)))[0].result(60)
    row = booked(client, "echo", 4)
    assert counts(row) == expected(8, 4, 4, 0, [(1, 1), (2, 2), (3, 1)])
    spans = row.inference_stats
    assert 0 < sum(getattr(spans, name).ns for name in SPANS) <= spans.success.ns
    assert spans.fail.ns == 0
    assert row.last_inference > 1_700_000_000_000  # ms since 1970


def test_each_request_of_a_batch_counts_the_whole_batch(client) -> None:
    futures = [ask(client, "fours", np.ones((1, 3)))[0] for _ in range(4)]
    assert not wait(futures, timeout=60).not_done
    row = booked(client, "fours", 4)
    assert counts(row) == expected(4, 1, 4, 0, [(4, 1)])
    for name in SPANS[1:]:
        assert getattr(row.inference_stats, name).ns == 4 * getattr(row.batch_stats[0], name).ns


def test_a_request_that_fails_is_an_execution_and_no_inference(client) -> None:
    for index in (1, BAD, 2, BAD):
        assert (look_up(client, "look_up", [index, 0]).result(60) is None) == (index != BAD)
    row = booked(client, "look_up", 4)
    assert counts(row) == expected(4, 4, 2, 2, [(2, 4)])
    assert row.inference_stats.fail.ns > 0
    assert sum(getattr(row.inference_stats, name).ns for name in SPANS) <= row.inference_stats.success.ns


def test_a_batch_that_fails_fails_all_its_requests(client) -> None:
    futures = [look_up(client, "pairs", [index]) for index in (BAD, 1)]
    assert all(future.result(60) is not None for future in futures)
    assert counts(booked(client, "pairs", 2)) == expected(0, 1, 0, 2, [(2, 1)])


def test_what_is_refused_is_counted_nowhere(client) -> None:
    before = counts(statistics(client, "versions", "1"))
    for array, name in ((np.ones((9, 3)), "INPUT0"), (np.ones((1, 3)), "NOPE"), (np.ones(3), "INPUT0")):
        assert ask(client, "versions", array, name, model_version="1")[0].exception(60)
    assert counts(statistics(client, "versions", "1")) == before


def test_a_cancelled_request_is_a_failure(client, server: RunningServer) -> None:
    cancelled, call = ask(client, "cancel", np.ones((1, 3)))
    until_waiting(server, "cancel", 1)
    call.cancel()
    assert cancelled.exception(60)
    futures = [ask(client, "cancel", np.ones((1, 3)))[0] for _ in range(4)]
    assert not wait(futures, timeout=60).not_done
    row = booked(client, "cancel", 5)
    assert counts(row) == expected(4, 1, 4, 1, [(4, 1)])
    assert row.inference_stats.fail.ns > 0


def test_versions_count_apart(client) -> None:
    before = {row.version: row.inference_count for row in client.get_inference_statistics("versions").model_stats}
    assert set(before) == {"1", "3"}
    for version in ("3", "3", ""):
        ask(client, "versions", np.ones((1, 3)), model_version=version)[0].result(60)
    requests = before["3"] + 3
    assert booked(client, "versions", requests, "3").inference_count == requests
    rows = client.get_inference_statistics("versions").model_stats
    assert {row.version: row.inference_count for row in rows} == {**before, "3": requests}


def test_without_a_model_all_are_told(client, server: RunningServer) -> None:
    names = {(row.name, row.version) for row in client.get_inference_statistics().model_stats}
    assert {("echo", "1"), ("versions", "1"), ("versions", "3")} <= names
    assert {(row.name, row.version) for row in client.get_inference_statistics("", "1").model_stats} == names
    with httpclient.InferenceServerClient(server.http) as over_http:
        rows = over_http.get_inference_statistics()["model_stats"]
    assert {(row["name"], row["version"]) for row in rows} == names


@pytest.mark.parametrize(
    ("model", "version", "words"),
    [
        ("nope", "", "requested model 'nope' is not available"),
        ("nope", "1", "requested model 'nope' is not available"),
        ("echo", "7", "requested model version is not available for model 'echo'"),
        ("echo", "x", "version should be an integral value > 0"),
        ("echo", "-1", "version should be an integral value > 0"),
        ("echo", "9" * 30, "version should be an integral value > 0"),
    ],
)
def test_models_and_versions_that_are_not_there(client, model: str, version: str, words: str) -> None:
    with pytest.raises(InferenceServerException, match=words) as raised:
        client.get_inference_statistics(model, version)
    assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("version", ["x", "1x", "-1"])
def test_versions_that_are_no_numbers_over_http(server: RunningServer, version: str) -> None:
    """Triton does not know the path."""
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"http://{server.http}/v2/models/echo/versions/{version}/stats", timeout=30)
    assert raised.value.code == (404 if server.is_oracle else 400)
    raised.value.close()


def test_json_has_the_members_and_numbers_of_the_message(client, server: RunningServer) -> None:
    ask(client, "versions", np.ones((2, 3)), model_version="3")[0].result(60)
    with urllib.request.urlopen(f"http://{server.http}/v2/models/versions/versions/3/stats", timeout=30) as answer:
        (row,) = json.load(answer)["model_stats"]
    assert set(row) == {
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    }
    assert set(row["inference_stats"]) == {"success", "fail", *SPANS, "cache_hit", "cache_miss"}
    assert set(row["batch_stats"][0]) == {"batch_size", *SPANS[1:]}
    numbers = [row["last_inference"], row["inference_count"], row["execution_count"]]
    numbers += [number for span in row["inference_stats"].values() for number in (span["count"], span["ns"])]
    assert all(type(number) is int for number in numbers)
    assert (row["response_stats"], row["memory_usage"]) == ({}, [])


Requests = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, BAD]), min_size=1, max_size=4), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=Requests)
def test_all_that_was_answered_is_counted_once(headrace: RunningServer, requests: list[list[int]]) -> None:
    """Whatever shares a batch: each request is a success or a failure, as its client was told, and the rows add up."""
    with grpcclient.InferenceServerClient(headrace.grpc) as client:
        before = statistics(client, "mixed")
        futures = [look_up(client, "mixed", indices) for indices in requests]
        good = [indices for indices, future in zip(requests, futures, strict=True) if future.result(60) is None]
        after = statistics(client, "mixed")
    spans, spans_before = after.inference_stats, before.inference_stats
    assert spans.success.count - spans_before.success.count == len(good)
    assert spans.fail.count - spans_before.fail.count == len(requests) - len(good)
    assert after.inference_count - before.inference_count == sum(map(len, good))
    rows = [sum(row.batch_size * row.compute_infer.count for row in one.batch_stats) for one in (after, before)]
    assert rows[0] - rows[1] == sum(map(len, requests))
    assert sum(row.compute_infer.count for row in after.batch_stats) == after.execution_count


def test_the_numbers_of_one_moment_agree(headrace: RunningServer) -> None:
    """While clients ask, each snapshot has a request in all of its sums or in none."""
    over = threading.Event()

    def hammer(seed: int) -> None:
        with grpcclient.InferenceServerClient(
            headrace.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]
        ) as own:
            for index in itertools.cycle([0, 1, BAD, 2][seed:]):
                if over.is_set():
                    return
                look_up(own, "mixed", [index]).result(60)

    threads = [threading.Thread(target=hammer, args=(number % 4,)) for number in range(6)]
    with grpcclient.InferenceServerClient(headrace.grpc) as client:
        first = statistics(client, "mixed")
        others = sum(row.batch_size * row.compute_infer.count for row in first.batch_stats)
        others -= first.inference_stats.success.count + first.inference_stats.fail.count
        for thread in threads:
            thread.start()
        try:
            seen = [statistics(client, "mixed") for _ in range(300)]
        finally:
            over.set()
            for thread in threads:
                thread.join()
    for row in seen:
        spans = row.inference_stats
        assert {getattr(spans, name).count for name in SPANS} == {spans.success.count}
        assert sum(batch.compute_infer.count for batch in row.batch_stats) == row.execution_count
        rows = sum(batch.batch_size * batch.compute_infer.count for batch in row.batch_stats)
        assert rows == spans.success.count + spans.fail.count + others
        assert row.inference_count - first.inference_count == spans.success.count - first.inference_stats.success.count
    assert seen[-1].execution_count > seen[0].execution_count
