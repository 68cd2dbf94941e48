"""The extension's face to Python, with a wire in this process and this test as its instance."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from headrace.core.tensor import HOST
from headrace.core.wire import Batch, Buffer, Intake, Wire, WireError
from tests.doors.asking import ask


@pytest.fixture
def wire() -> Iterator[Wire]:
    own = Wire(client_shm="local", max_requests=100, max_bytes=1 << 20, stall_secs=0.05, threads=1)
    own.set_unready(None)
    yield own
    own.close()


@pytest.fixture
def intake(wire: Wire) -> Intake:
    own = Intake(
        "m", 3, 4, [("INPUT0", "FP32", [2], None, False, [])], [("OUTPUT0", "FP32", [2], None, False, [])], False
    )
    wire.publish(own)
    return own


@pytest.fixture
def client(wire: Wire) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(f"127.0.0.1:{wire.listen('grpc', '127.0.0.1', 0)}") as connected:
        yield connected


def take(intake: Intake, rows: int = 1) -> Batch:
    pending = intake.wait([(0, rows)], None, HOST, None, 100)
    assert pending is not None
    _, draining, _, [(lane, _, waiting, _)] = pending
    assert not draining
    batch = intake.take(lane, len(waiting), "test")
    assert batch is not None
    return batch


def contents(address: int, count: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32).copy()


def test_a_batch_is_placed_scattered_and_settled(client, intake: Intake) -> None:
    answers = [ask(client, "m", np.full((rows, 2), rows))[0] for rows in (1, 2)]
    batch = take(intake, rows=3)
    assert (batch.count, batch.rows, batch.shape(0), batch.wanted()) == (2, 3, (3, 2), [0])
    assert batch.view(0) is None
    buffer = Buffer(24)
    batch.gather(0, buffer)
    sums = sorted(contents(buffer.address, 6).tolist())
    assert sums == [1, 1, 2, 2, 2, 2]
    batch.scatter(0, [3, 2], buffer)
    with pytest.raises(ValueError, match="given to a reply"):
        _ = buffer.address
    batch.settle(batch.taken + 10, batch.taken + 30)
    assert [answer.result(30)[0, 0] for answer in answers] == [1, 2]
    sums = intake.statistics()
    assert (sums.success[0], sums.inferences, sums.executions) == (2, 3, 1)
    assert (sums.input, sums.infer) == ((2, 20), (2, 40))
    assert sums.batches[0][:3] == (3, (1, 10), (1, 20))
    assert (sums.copied_in, sums.copied_out, sums.reasons) == (24, 0, {"test": 1})


def test_a_batch_that_is_dropped_or_failed_answers_its_requests(client, intake: Intake) -> None:
    first, _ = ask(client, "m", np.ones((1, 2)))
    batch = take(intake)
    del batch
    assert "an instance of model 'm' dropped the request" in str(first.exception(30))
    second, _ = ask(client, "m", np.ones((1, 2)), request_id="7")
    batch = take(intake)
    batch.fail("UNAVAILABLE", "not today")
    batch.fail("INTERNAL", "twice")
    batch.settle(0, 0)
    assert "StatusCode.UNAVAILABLE" in str(second.exception(30))
    assert "[request id: 7] not today" in str(second.exception(30))
    assert intake.statistics().fail[0] == 2
    assert intake.held() == 0


def test_more_than_waits_is_not_taken(client, intake: Intake) -> None:
    """Of two threads that decided on the same requests, the second must not leave with the rest of them."""
    answer, _ = ask(client, "m", np.ones((1, 2)))
    pending = intake.wait([], None, HOST, None, 100)
    assert pending is not None
    assert intake.take(pending[3][0][0], 2, "test") is None
    assert intake.waiting() == 1
    batch = take(intake)
    batch.forward(0, 0)
    batch.settle(0, 0)
    np.testing.assert_array_equal(answer.result(30), [[1, 1]])


def test_requests_that_another_thread_left_make_no_batch_of_too_many_rows(client, intake: Intake) -> None:
    """Of two threads that decided on the first two of three requests, the second must not take the large third."""
    for number, rows in enumerate((1, 1, 4)):
        ask(client, "m", np.ones((rows, 2)))
        while intake.waiting() == number:
            pass
    pending = intake.wait([], None, HOST, None, 100)
    assert pending is not None
    _, _, _, [(lane, _, waiting, _)] = pending
    assert waiting == [1, 1, 4]
    faster = intake.take(lane, 1, "test")
    assert intake.take(lane, 2, "test") is None, "5 rows; max_batch_size is 4"
    rest = [intake.take(lane, 1, "test"), intake.take(lane, 1, "test")]
    batches = [batch for batch in (faster, *rest) if batch is not None]
    assert [batch.rows for batch in batches] == [1, 1, 4]
    for batch in batches:
        batch.fail("INTERNAL", "over")


def test_wrong_shapes_and_buffers_of_an_instance_are_refused(client, intake: Intake) -> None:
    answer, _ = ask(client, "m", np.ones((1, 2)))
    batch = take(intake)
    with pytest.raises(ValueError, match="8 bytes do not fit a buffer of 4"):
        batch.gather(0, Buffer(4))
    with pytest.raises(ValueError, match=r"output 'OUTPUT0' of 1 rows has shape \[2, 2\] in 16 bytes"):
        batch.scatter(0, [2, 2], Buffer(16))
    batch.forward(0, 0)
    batch.settle(0, 0)
    np.testing.assert_array_equal(answer.result(30), [[1, 1]])


def test_an_instance_that_holds_a_batch_makes_the_server_unready(wire: Wire, client, intake: Intake) -> None:
    assert wire.unready() is None
    ask(client, "m", np.ones((1, 2)))
    batch = take(intake)
    while wire.unready() is None:
        pass
    assert "model 'm' version 3 has held a batch" in (wire.unready() or "")
    assert client.is_server_live()
    assert not client.is_server_ready()
    batch.fail("INTERNAL", "over")
    assert wire.unready() is None


def test_a_control_loop_that_does_not_pull_makes_the_server_unready(wire: Wire, client) -> None:
    assert wire.pull(0.0) is None
    assert client.is_server_ready()
    while client.is_server_ready():
        pass
    assert wire.unready() == "Server not ready: its control loop is stuck"


def test_a_closed_intake_ends_its_instances_and_requests(wire: Wire, client, intake: Intake) -> None:
    answer, _ = ask(client, "m", np.ones((1, 2)))
    while intake.waiting() == 0:
        pass
    intake.close()
    assert intake.wait([], None, HOST, None, 1) is None
    assert "was unloaded before the request was executed" in str(answer.exception(30))
    assert "is not at ready state" in str(ask(client, "m", np.ones((1, 2)))[0].exception(30))
    wire.forget("m")
    assert "'m' is not found" in str(ask(client, "m", np.ones((1, 2)))[0].exception(30))


def test_more_requests_or_bytes_than_permitted_are_refused_at_once(client, intake: Intake) -> None:
    waiting = [ask(client, "m", np.ones((1, 2)))[0] for _ in range(100)]
    while intake.waiting() < 100:
        pass
    assert "server is overloaded: 100 requests are in flight" in str(ask(client, "m", np.ones((1, 2)))[0].exception(30))
    intake.close()
    assert all(answer.exception(30) for answer in waiting)
    assert "hold over 1048576 bytes" in str(ask(client, "m", np.ones((1, 300_000)))[0].exception(30))


def test_a_door_that_cannot_be_opened(wire: Wire) -> None:
    port = wire.listen("http", "127.0.0.1", 0)
    with pytest.raises(WireError, match=rf"cannot listen on 127\.0\.0\.1:{port} for http"):
        wire.listen("http", "127.0.0.1", port)
    with pytest.raises(WireError, match=r"cannot listen on no\.such\.host\.invalid"):
        wire.listen("http", "no.such.host.invalid", 0)
    with pytest.raises(ValueError, match="a door is grpc, http or metrics"):
        wire.listen("smtp", "127.0.0.1", 0)
