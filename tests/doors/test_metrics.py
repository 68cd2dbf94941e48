"""The metrics page: Triton's families with its labels and counts, as the real Triton has them, and Headrace's own."""

from __future__ import annotations

import http.client
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import wait

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.observe.metrics import FAMILIES
from tests import models
from tests.doors.asking import ask, until_waiting
from tests.doors.raw import post, post_json, tensor
from tests.doors.test_statistics import BAD, FOURS, LOOK_UP, booked, look_up
from tests.metrics import metrics_text, read_metric
from tests.servers import RunningServer

REASONS = {"BACKEND", "CANCELED", "REJECTED", "OTHER"}
SUMMARIES = [
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01",
    "--metrics-config=counter_latencies=false",
]
TAGS = r'metric_tags { key: "team" value: "v\"i\\s" } metric_tags { key: "model" value: "2" }'
NOT_IN_24_10 = {"nv_model_load_duration_secs"}


def own_models(repository) -> None:
    for name in ("echo", "cancel", "fours"):
        models.identity(repository, name, "FP32", [-1], extra="" if name == "echo" else FOURS)
    models.gather(repository, "look_up", LOOK_UP)
    models.identity(repository, "tagged", "FP32", [-1], extra=TAGS)


def oracle_models(repository) -> None:
    for name in ("echo", "cancel", "fours"):
        models.oracle_identity(repository, name, "FP32", [-1], extra="" if name == "echo" else FOURS)
    models.oracle_identity(repository, "tagged", "FP32", [-1], extra=TAGS)
    models.oracle_python(repository, "look_up", LOOK_UP, '{"OUTPUT0": np.arange(4, dtype="f")[take("INPUT0")]}')


@pytest.fixture(scope="module")
def headrace(start, tmp_path_factory) -> RunningServer:
    own_models(repository := tmp_path_factory.mktemp("models"))
    return start(repository, "--metrics-interval-ms=100")


@pytest.fixture(scope="module")
def oracle(start_judge, tmp_path_factory) -> RunningServer:
    oracle_models(repository := tmp_path_factory.mktemp("oracle_models"))
    return start_judge(repository, "--metrics-interval-ms=100")


@pytest.fixture(scope="module")
def headrace_summaries(start, tmp_path_factory) -> RunningServer:
    own_models(repository := tmp_path_factory.mktemp("models"))
    return start(repository, *SUMMARIES, "--allow-cpu-metrics=false")


@pytest.fixture(scope="module")
def oracle_summaries(start_judge, tmp_path_factory) -> RunningServer:
    oracle_models(repository := tmp_path_factory.mktemp("oracle_models"))
    return start_judge(repository, *SUMMARIES, "--allow-cpu-metrics=false")


@pytest.fixture(params=["headrace", pytest.param("oracle", marks=pytest.mark.oracle)])
def server(request) -> RunningServer:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["headrace", pytest.param("oracle", marks=pytest.mark.oracle)])
def summaries(request) -> RunningServer:
    return request.getfixturevalue(f"{request.param}_summaries")


@pytest.fixture
def client(server: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def families(server: RunningServer) -> dict[str, Metric]:
    """By the names on the page: the parser takes `_total` from counters."""
    text = metrics_text(server)
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    parsed = {family.name: family for family in text_string_to_metric_families(text)}
    return {name: parsed[name if name in parsed else name.removesuffix("_total")] for name in told}


def labels(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels}


def triton_families(server: RunningServer) -> dict[str, tuple[str, set[str]]]:
    return {
        name: (family.type, labels(family))
        for name, family in families(server).items()
        if name.startswith("nv_") and not name.startswith(("nv_gpu_", "nv_energy_"))
    }


def without_newer(found: dict[str, tuple[str, set[str]]]) -> dict[str, tuple[str, set[str]]]:
    return {name: family for name, family in found.items() if name not in NOT_IN_24_10}


@pytest.mark.oracle
def test_the_families_types_and_labels_of_the_real_triton(headrace: RunningServer, oracle: RunningServer) -> None:
    assert without_newer(triton_families(headrace)) == triton_families(oracle)


@pytest.mark.oracle
def test_the_summaries_of_the_real_triton(headrace_summaries: RunningServer, oracle_summaries: RunningServer) -> None:
    for server in (headrace_summaries, oracle_summaries):
        with grpcclient.InferenceServerClient(server.grpc) as client:
            ask(client, "echo", np.ones((1, 3)))[0].result(60)
            booked(client, "echo", 1)
    assert without_newer(triton_families(headrace_summaries)) == triton_families(oracle_summaries)


def test_counts_of_requests_rows_and_executions(client, server: RunningServer) -> None:
    before = {name: read_metric(server, name, model="echo") for name in COUNTS}
    for rows in (1, 2, 3):
        ask(client, "echo", np.ones((rows, 3)))[0].result(60)
    booked(client, "echo", int(before["nv_inference_request_success"]) + 3)
    assert {name: read_metric(server, name, model="echo", version="1") - before[name] for name in COUNTS} == {
        "nv_inference_request_success": 3,
        "nv_inference_count": 6,
        "nv_inference_exec_count": 3,
    }
    spans = [read_metric(server, f"nv_inference_{name}_duration_us", model="echo") for name in SPANS]
    assert 0 < sum(spans) <= read_metric(server, "nv_inference_request_duration_us", model="echo")


COUNTS = ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")
SPANS = ("queue", "compute_input", "compute_infer", "compute_output")


def failures(server: RunningServer, model: str) -> dict[str, float]:
    found = {
        reason: read_metric(server, "nv_inference_request_failure", model=model, version="1", reason=reason)
        for reason in REASONS
    }
    return {reason: count for reason, count in found.items() if count}


def test_failures_have_a_reason(client, server: RunningServer) -> None:
    family = families(server)["nv_inference_request_failure"]
    assert {sample.labels["reason"] for sample in family.samples if sample.labels["model"] == "look_up"} == REASONS
    for index in (1, BAD, BAD):
        look_up(client, "look_up", [index]).result(60)
    assert ask(client, "look_up", np.ones((1, 1)))[0].exception(60)  # refused: the wrong type
    booked(client, "look_up", 3)
    assert failures(server, "look_up") == {"BACKEND": 2}
    assert read_metric(server, "nv_inference_request_success", model="look_up") == 1
    assert read_metric(server, "nv_inference_exec_count", model="look_up") == 3


def test_pending_and_cancelled_requests(client, server: RunningServer) -> None:
    _, call = ask(client, "cancel", np.ones((1, 3)))
    until_waiting(server, "cancel", 1)
    futures = [ask(client, "cancel", np.ones((1, 3)))[0] for _ in range(2)]
    until_waiting(server, "cancel", 3)
    call.cancel()
    while sum(failures(server, "cancel").values()) < 1:
        futures += [ask(client, "cancel", np.ones((1, 3)))[0] for _ in range(4)]  # Triton looks when a batch leaves
        assert not wait(futures[:1], timeout=60).not_done
        booked(client, "cancel", 5)
    assert failures(server, "cancel") == {"CANCELED": 1}


def test_tags_of_a_config_are_labels_of_its_model(client, server: RunningServer) -> None:
    ask(client, "tagged", np.ones((1, 3)))[0].result(60)
    booked(client, "tagged", 1)
    tags = {"_team": 'v"i\\s', "_model": "2"}
    assert read_metric(server, "nv_inference_count", model="tagged", **tags) == 1
    assert read_metric(server, "nv_inference_count", model="echo", **tags) == 0


def test_figures_of_the_machine(server: RunningServer) -> None:
    while read_metric(server, "nv_cpu_memory_total_bytes") == 0:  # Triton has none for a moment
        pass
    assert 0 <= read_metric(server, "nv_cpu_utilization") <= 1
    with open("/proc/meminfo") as file:  # noqa: PTH123
        total = int(file.readline().split()[1]) * 1024
    assert read_metric(server, "nv_cpu_memory_total_bytes") == total
    assert 0 < read_metric(server, "nv_cpu_memory_used_bytes") < total


def test_summaries_are_there_when_they_are_asked_for(summaries: RunningServer) -> None:
    name = "nv_inference_request_summary_us"
    before = read_metric(summaries, f"{name}_count", model="fours")
    with grpcclient.InferenceServerClient(summaries.grpc) as client:
        futures = [ask(client, "fours", np.ones((1, 3)))[0] for _ in range(4)]
        assert not wait(futures, timeout=60).not_done
        booked(client, "fours", int(before) + 4)
    samples = [sample for sample in families(summaries)[name].samples if sample.labels["model"] == "fours"]
    quantiles = {sample.labels["quantile"]: sample.value for sample in samples if sample.name == name}
    assert set(quantiles) == {"0.5", "0.9"}
    assert 0 < quantiles["0.5"] <= quantiles["0.9"]
    assert read_metric(summaries, f"{name}_count", model="fours") == before + 4
    assert read_metric(summaries, f"{name}_sum", model="fours") > 0
    assert not {"nv_inference_request_duration_us", "nv_cpu_utilization"} & families(summaries).keys()


def test_without_counters_of_latencies_the_others_count_on(headrace_summaries: RunningServer) -> None:
    """Triton's stand still, which is of no use to anybody."""
    before = read_metric(headrace_summaries, "nv_inference_request_success", model="echo")
    with grpcclient.InferenceServerClient(headrace_summaries.grpc) as client:
        ask(client, "echo", np.ones((1, 3)))[0].result(60)
    assert read_metric(headrace_summaries, "nv_inference_request_success", model="echo") == before + 1


def test_quantiles_of_a_model_that_nobody_asks_are_no_numbers(headrace_summaries: RunningServer) -> None:
    assert math.isnan(read_metric(headrace_summaries, "nv_inference_queue_summary_us", model="look_up", quantile="0.5"))


def test_histograms_of_first_responses(start, tmp_path_factory) -> None:
    own_models(repository := tmp_path_factory.mktemp("models"))
    server = start(repository, "--metrics-config", "histogram_latencies=true")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        ask(client, "echo", np.ones((1, 3)))[0].result(60)
    samples = families(server)["nv_inference_first_response_histogram_ms"].samples
    bounds = [s.labels["le"] for s in samples if s.labels["model"] == "echo" and "le" in s.labels]
    assert [float(bound) for bound in bounds] == [100, 500, 2000, 5000, math.inf]
    assert read_metric(server, "nv_inference_first_response_histogram_ms_count", model="echo") == 1


def test_the_page_has_every_family_once_and_no_sample_twice(headrace: RunningServer) -> None:
    text = metrics_text(headrace)
    told = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    helped = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert told == helped
    assert len(told) == len(set(told))
    named = {family.name for family in FAMILIES}
    assert set(told) <= named
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    for name, family in families(headrace).items():
        assert labels(family) - {"le", "quantile", "_team", "_model"} <= set(
            next(row for row in FAMILIES if row.name == name).labels
        )


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/metrics/", 200), ("/metrics?a=b", 200), ("/", 404)])
def test_paths_of_the_page(server: RunningServer, path: str, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status == (200 if server.is_oracle else status)  # Triton answers other paths with nothing
    assert (b"# TYPE nv_inference_count counter" in body) == (status == 200)
    if status == 200:
        assert response.getheader("Content-Type") == "text/plain; charset=utf-8"


def test_each_stage_has_each_request_once(headrace: RunningServer) -> None:
    with grpcclient.InferenceServerClient(headrace.grpc) as client:
        ask(client, "echo", np.ones((2, 3)))[0].result(60)
        futures = [ask(client, "fours", np.ones((1, 3)))[0] for _ in range(4)]
        assert not wait(futures, timeout=60).not_done
        for model in ("echo", "fours"):
            requests = client.get_inference_statistics(model).model_stats[0].inference_stats.success.count
            for stage in ("decode", "queue", "input", "infer", "output", "encode", "request"):
                while True:  # *encode* ends after its reply, and after its request is counted
                    count = read_metric(headrace, "headrace_stage_seconds_count", model=model, stage=stage)
                    if count == requests or stage != "encode":
                        break
                assert count == requests, stage
    samples = [s for s in families(headrace)["headrace_stage_seconds"].samples if s.labels["model"] == "echo"]
    queue = [s.value for s in samples if s.labels["stage"] == "queue" and "le" in s.labels]
    assert queue == sorted(queue)
    seconds = read_metric(headrace, "headrace_stage_seconds_sum", model="echo", stage="queue")
    assert seconds * 1e6 == pytest.approx(read_metric(headrace, "nv_inference_queue_duration_us", model="echo"), abs=1)


def test_batches_by_their_rows(headrace: RunningServer) -> None:
    def executions(bound: str) -> float:
        return read_metric(headrace, "headrace_batch_rows_bucket", model="fours", le=bound)

    before = [executions(bound) for bound in ("2", "4", "+Inf")]
    with grpcclient.InferenceServerClient(headrace.grpc) as client:
        futures = [ask(client, "fours", np.ones((1, 3)))[0] for _ in range(4)]
        assert not wait(futures, timeout=60).not_done
    after = [executions(bound) for bound in ("2", "4", "+Inf")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 1]


def test_refused_requests_by_door_and_kind(headrace: RunningServer) -> None:
    def refused(door: str, kind: str) -> float:
        return read_metric(headrace, "headrace_refused_requests_total", door=door, kind=kind)

    rows = [("grpc", "INVALID_ARGUMENT"), ("http", "NOT_FOUND"), ("http", "INVALID_ARGUMENT")]
    before = [refused(*row) for row in rows]
    with grpcclient.InferenceServerClient(headrace.grpc) as client:
        assert ask(client, "echo", np.ones((9, 3)))[0].exception(60)
    assert post_json(headrace, "nope", {"inputs": [tensor("FP32", [1, 1], [0])]}).status == 404
    assert post(headrace, "echo", b"{").status == 400
    assert [refused(*row) for row in rows] == [count + 1 for count in before]


def test_a_request_without_its_secret_is_a_refused_one(start, tmp_path) -> None:
    models.identity(tmp_path, "echo", "FP32", [-1])
    server = start(tmp_path, "--http-restricted-api=inference,statistics:secret=x")
    assert post(server, "echo", b"{}").status == 403
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://{server.http}/v2/models/stats", timeout=30)
    assert read_metric(server, "headrace_refused_requests_total", door="http", kind="RESTRICTED") == 1
    assert read_metric(server, "headrace_refused_requests_total") == 1


def test_what_is_held_now(headrace: RunningServer) -> None:
    assert read_metric(headrace, "headrace_connections") >= 1
    assert read_metric(headrace, "headrace_in_flight_requests") >= 1  # this one
    with grpcclient.InferenceServerClient(headrace.grpc) as client:
        before = read_metric(headrace, "headrace_in_flight_requests")
        futures = [ask(client, "fours", np.ones((1, 1000)))[0] for _ in range(3)]
        until_waiting(headrace, "fours", 3)
        assert read_metric(headrace, "headrace_in_flight_requests") >= before + 3
        assert read_metric(headrace, "headrace_in_flight_bytes") >= 3 * 4000
        futures.append(ask(client, "fours", np.ones((1, 1000)))[0])
        assert not wait(futures, timeout=60).not_done
    assert read_metric(headrace, "headrace_model_state", model="echo", state="READY") == 1
    assert read_metric(headrace, "headrace_instances", model="echo", state="running") == 1
    assert read_metric(headrace, "headrace_instances", state="ended") == 0
    assert read_metric(headrace, "headrace_held_batches") == 0
    assert 0 < read_metric(headrace, "nv_model_load_duration_secs", model="echo") < 60
