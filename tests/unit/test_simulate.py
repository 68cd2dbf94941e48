"""The scheduler and the pipeline on simulated GPUs in virtual time: as fast as can be, the same every time."""

from __future__ import annotations

import pytest

from benchmarks.simulate.run import DETECTOR, ROWS, SLICE, Scenario, scenarios, simulate

SLOTS = 2 * 2
"""Of a device: two instances with two slots each."""


def _name(row: Scenario) -> str:
    return f"{row.model.name} {row.mode} {row.devices}{' blocking' if row.blocking else ''}"


@pytest.mark.parametrize("scenario", scenarios([1, 2]), ids=_name)
def test_every_traffic_comes_near_what_is_possible(scenario: Scenario) -> None:
    outcome = simulate(scenario)
    assert outcome.share >= 0.95
    assert outcome.mean_batch >= 29
    if scenario.mode == "loss":
        assert 0 < outcome.failed <= SLOTS * ROWS
    else:
        assert outcome.failed == 0


def test_it_goes_the_same_way_every_time() -> None:
    scenario = Scenario(DETECTOR, "mixed", 2)
    assert simulate(scenario) == simulate(scenario)


def test_requests_of_an_even_load_are_served_at_home() -> None:
    assert simulate(Scenario(SLICE, "cuda", 2)).peer_batches == 0
