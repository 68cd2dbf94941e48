"""The batching rule, whatever waits."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.queue.policy import (
    DELAY,
    DRAIN,
    FULL,
    NO_DELAY,
    PREFERRED,
    SINGLE,
    BatchPolicy,
    Lane,
    Take,
    Wait,
    decide,
)


@st.composite
def policies(draw: st.DrawFn) -> BatchPolicy:
    rows = draw(st.integers(1, 64))
    if draw(st.booleans()):
        return BatchPolicy(rows)
    preferred = draw(st.sets(st.integers(1, rows), max_size=4))
    return BatchPolicy(rows, True, tuple(sorted(preferred)), draw(st.sampled_from([0, 1, 500, 10**6])))


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Lane], BatchPolicy, int, bool]:
    policy = draw(policies())
    now = draw(st.integers(0, 10**6))
    sizes = st.lists(st.integers(1, policy.max_rows), min_size=1, max_size=70)
    lanes = [
        (number, draw(st.integers(0, now)), draw(sizes), -1) for number in draw(st.sets(st.integers(0, 9), max_size=4))
    ]
    return lanes, policy, now, draw(st.booleans())


def rows_of(take: Take, lanes: list[Lane]) -> list[int]:
    return next(rows for number, _, rows, _ in lanes if number == take.lane)[: take.count]


@given(questions())
def test_a_batch_is_never_empty_nor_over_the_limit(question) -> None:
    lanes, policy, now, draining = question
    decision = decide(lanes, policy, now, draining)
    if isinstance(decision, Take):
        rows = rows_of(decision, lanes)
        assert 1 <= len(rows) == decision.count
        assert sum(rows) <= policy.max_rows
        assert policy.dynamic or decision.count == 1


@given(questions())
def test_nothing_waits_without_a_reason(question) -> None:
    """Waiting needs a delay that is not over, for every lane, and something that can still come."""
    lanes, policy, now, draining = question
    decision = decide(lanes, policy, now, draining)
    if isinstance(decision, Wait):
        assert not draining or not lanes
        for number, oldest, rows, _ in lanes:
            assert policy.dynamic
            assert oldest + policy.delay_ns > now
            assert sum(rows) < policy.max_rows
            threshold = dict(decision.thresholds)[number]
            assert sum(rows) < threshold <= policy.max_rows
        assert decision.until == min((oldest + policy.delay_ns for _, oldest, _, _ in lanes), default=None)
    else:
        assert lanes


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 7)), min_size=1, max_size=9), st.integers(100, 999))
def test_a_wait_ends(waiting: list[tuple[int, int]], now: int) -> None:
    """At the time it names something is taken, if nothing has come."""
    lanes: list[Lane] = [(number, oldest, [rows], -1) for number, (oldest, rows) in enumerate(waiting)]
    policy = BatchPolicy(8, True, (8,), 1000)
    decision = decide(lanes, policy, now, False)
    assert isinstance(decision, Wait)
    assert decision.until is not None
    later = decide(lanes, policy, decision.until, False)
    assert isinstance(later, Take)
    assert later.reason == DELAY


@given(questions())
def test_the_reason_is_true(question) -> None:
    lanes, policy, now, draining = question
    decision = decide(lanes, policy, now, draining)
    assume(isinstance(decision, Take))
    number, oldest, waiting, _ = next(lane for lane in lanes if lane[0] == decision.lane)
    rows = sum(rows_of(decision, lanes))
    rest = waiting[decision.count :]
    assert {
        SINGLE: not policy.dynamic,
        FULL: rows == policy.max_rows or (rest and rows + rest[0] > policy.max_rows),
        DRAIN: draining and not rest,
        NO_DELAY: policy.delay_ns == 0 and not rest,
        DELAY: now - oldest >= policy.delay_ns and not rest,
        PREFERRED: rows in policy.preferred,
    }[decision.reason], number


@given(questions())
def test_the_oldest_lane_that_may_go_goes(question) -> None:
    lanes, policy, now, draining = question
    decision = decide(lanes, policy, now, draining)
    assume(isinstance(decision, Take))
    ages = {number: oldest for number, oldest, _, _ in lanes}
    for lane in lanes:
        alone = decide([lane], policy, now, draining)
        if isinstance(alone, Take):
            assert ages[decision.lane] <= ages[alone.lane]


def test_the_documented_example() -> None:
    """Preferred 2, 4 and 8 with a delay: eight requests go as eight, nine as eight, three as two."""
    policy = BatchPolicy(16, True, (2, 4, 8), 1000)
    assert decide([(0, 0, [1] * 8, -1)], policy, 1, False) == Take(0, 8, PREFERRED)
    assert decide([(0, 0, [1] * 9, -1)], policy, 1, False) == Take(0, 8, PREFERRED)
    assert decide([(0, 0, [1] * 3, -1)], policy, 1, False) == Take(0, 2, PREFERRED)
    assert decide([(0, 0, [1], -1)], policy, 1, False) == Wait(((0, 2),), 1000)
    assert decide([(0, 0, [1], -1)], policy, 1000, False) == Take(0, 1, DELAY)


def test_the_founding_report_batches_what_waits() -> None:
    """`preferred_batch_size: 32` without a delay: whatever waits goes, up to 32."""
    policy = BatchPolicy(32, True, (32,), 0)
    assert decide([(0, 0, [1] * 50, -1)], policy, 0, False) == Take(0, 32, FULL)
    assert decide([(0, 0, [1] * 5, -1)], policy, 0, False) == Take(0, 5, NO_DELAY)


@given(questions(), st.integers(1, 3))
def test_a_prefetch_takes_only_what_cannot_grow(question, booked: int) -> None:
    lanes, policy, now, draining = question
    decision = decide(lanes, policy, now, draining, booked)
    if isinstance(decision, Take):
        assert decision.reason in (FULL, PREFERRED, SINGLE, DRAIN)
    else:
        assert decision.until is None  # the end of a computation has it look again, and no clock
