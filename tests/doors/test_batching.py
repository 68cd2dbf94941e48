"""Which requests share a batch, told by the statistics."""

from __future__ import annotations

from concurrent.futures import wait

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests import models
from tests.doors.asking import ask, until_waiting
from tests.metrics import read_metric
from tests.servers import RunningServer

RAGGED = "max_batch_size: 8 instance_group {{ count: 2 }} {batching}"


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    together = models.TOGETHER.format(size=4)
    models.identity(repository, "fours", "FP32", [-1], max_batch=8, extra=f"instance_group {{ count: 2 }} {together}")
    models.identity(repository, "alone", "FP32", [-1], max_batch=8)
    models.identity(
        repository,
        "patient",
        "FP32",
        [-1],
        max_batch=8,
        extra="dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 50000 }",
    )
    forever = f"dynamic_batching {{ preferred_batch_size: 2 max_queue_delay_microseconds: {2**64 - 1} }}"
    models.identity(repository, "forever", "FP32", [-1], max_batch=8, extra=forever)
    models.identity(repository, "cancel", "FP32", [-1], max_batch=8, extra=together)
    models.identity(repository, "vanish", "FP32", [-1], max_batch=8, extra=together)
    return start(repository)


@pytest.fixture
def client(server: RunningServer):
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def executions(client, model: str) -> dict[int, int]:
    """Executions by batch size."""
    statistics = client.get_inference_statistics(model).model_stats[0]
    return {row.batch_size: row.compute_infer.count for row in statistics.batch_stats}


def added(after: dict[int, int], before: dict[int, int]) -> dict[int, int]:
    return {size: count - before.get(size, 0) for size, count in after.items() if count != before.get(size, 0)}


def test_requests_wait_for_the_preferred_size(client, server: RunningServer) -> None:
    before = executions(client, "fours")
    futures = []
    for number in range(4):
        futures.append(ask(client, "fours", np.full((1, 3), number))[0])
        if number < 3:
            until_waiting(server, "fours", number + 1)
    assert not wait(futures, timeout=60).not_done
    assert [future.result()[0, 0] for future in futures] == [0, 1, 2, 3]
    assert added(executions(client, "fours"), before) == {4: 1}


def test_only_equal_shapes_share_a_batch(client, server: RunningServer) -> None:
    before = executions(client, "fours")
    futures = [ask(client, "fours", np.full((1, width), width))[0] for width in (2, 5, 2, 5, 2, 5)]
    until_waiting(server, "fours", 6)
    futures += [ask(client, "fours", np.full((1, width), width))[0] for width in (2, 5)]
    assert not wait(futures, timeout=60).not_done
    assert all((future.result() == future.result().shape[1]).all() for future in futures)
    assert added(executions(client, "fours"), before) == {4: 2}


def test_rows_count_and_a_full_batch_leaves_at_once(client, server: RunningServer) -> None:
    """3 + 3 rows do not wait for more: a third request of 3 would pass 8. It waits for a fourth row of its own."""
    before = executions(client, "fours")
    futures = []
    for number in range(3):
        futures.append(ask(client, "fours", np.full((3, 7), number))[0])
        until_waiting(server, "fours", number + 1 if number < 2 else 1)
    futures.append(ask(client, "fours", np.full((1, 7), 3))[0])
    assert not wait(futures, timeout=60).not_done
    assert added(executions(client, "fours"), before) == {6: 1, 4: 1}


def test_a_model_without_batching_runs_each_request_alone(client) -> None:
    futures = [ask(client, "alone", np.full((2, 3), number))[0] for number in range(10)]
    assert not wait(futures, timeout=60).not_done
    assert executions(client, "alone") == {2: 10}


def test_the_delay_ends_the_wait(client, server: RunningServer) -> None:
    ask(client, "patient", np.ones((1, 3)))[0].result(60)
    assert read_metric(server, "headrace_batch_leave_total", model="patient", reason="delay") == 1
    statistics = client.get_inference_statistics("patient").model_stats[0].inference_stats
    assert statistics.queue.ns >= 50_000_000


def test_a_cancelled_request_takes_no_place(client, server: RunningServer) -> None:
    cancelled, call = ask(client, "cancel", np.full((1, 3), 9))
    until_waiting(server, "cancel", 1)
    call.cancel()
    until_waiting(server, "cancel", 0)
    futures = [ask(client, "cancel", np.full((1, 3), number))[0] for number in range(4)]
    assert not wait(futures, timeout=60).not_done
    assert "CANCELLED" in str(cancelled.exception(60)).upper()
    assert executions(client, "cancel") == {4: 1}
    assert read_metric(server, "nv_inference_request_failure", model="cancel", reason="CANCELED") == 1


def test_a_deadline_takes_the_request_back(client, server: RunningServer) -> None:
    late, _ = ask(client, "cancel", np.full((1, 3), 9), client_timeout=0.2)
    assert "DEADLINE" in str(late.exception(60)).upper()
    until_waiting(server, "cancel", 0)


def test_a_client_that_is_gone_takes_no_place(client, server: RunningServer) -> None:
    gone = grpcclient.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)])
    ask(gone, "vanish", np.full((1, 3), 9))
    until_waiting(server, "vanish", 1)
    gone.close()
    until_waiting(server, "vanish", 0)
    over_http = httpclient.InferenceServerClient(server.http)
    tensor = httpclient.InferInput("INPUT0", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3), np.float32))
    over_http.async_infer("vanish", [tensor])
    # Another greenlet must run for the request to leave this process.
    with httpclient.InferenceServerClient(server.http) as other:
        while read_metric(server, "nv_inference_pending_request_count", model="vanish") != 1:
            other.is_server_live()
    over_http._client_stub.close()
    over_http._pool.kill()
    until_waiting(server, "vanish", 0)
    futures = [ask(client, "vanish", np.full((1, 3), number))[0] for number in range(4)]
    assert not wait(futures, timeout=60).not_done
    assert executions(client, "vanish") == {4: 1}


def test_the_longest_delay_is_only_long(client, server: RunningServer) -> None:
    first, _ = ask(client, "forever", np.ones((1, 3)))
    until_waiting(server, "forever", 1)
    second, _ = ask(client, "forever", np.ones((1, 3)))
    assert not wait([first, second], timeout=60).not_done
    assert first.result().shape == (1, 3)
