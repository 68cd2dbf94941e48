"""Prometheus' text format: what is written is what its own parser reads."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.observe.exposition import Histogram, Summary, Type, expose

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.one_of(st.integers(0, 1 << 64), st.floats(allow_nan=False))


def parsed(*family: object) -> list[tuple[str, dict[str, str], float]]:
    text = "\n".join(expose(*family)) + "\n"
    (found,) = text_string_to_metric_families(text)
    return [(sample.name, sample.labels, sample.value) for sample in found.samples]


@given(st.dictionaries(st.tuples(TEXTS, TEXTS), NUMBERS, max_size=5))
def test_labels_and_numbers_come_back(samples: dict[tuple[str, str], float]) -> None:
    found = parsed("some_gauge", Type.GAUGE, "What it is", ("model", "reason"), samples.items())
    assert [(labels["model"], labels["reason"]) for _, labels, _ in found] == list(samples)
    assert [value for _, _, value in found] == list(samples.values())


@given(st.lists(st.integers(0, 1 << 40), min_size=4, max_size=4))
def test_buckets_of_a_histogram_are_cumulative(counts: list[int]) -> None:
    histogram = Histogram([0.00001, 0.5, 2], counts, 1.25)
    found = parsed("some_seconds", Type.HISTOGRAM, "Times", ("model",), [(("m",), histogram)])
    buckets = [(labels["le"], value) for _, labels, value in found if "le" in labels]
    assert [float(bound) for bound, _ in buckets] == [0.00001, 0.5, 2, math.inf]
    assert [value for _, value in buckets] == [sum(counts[: at + 1]) for at in range(4)]
    assert [row for row in found if "le" not in row[1]] == [
        ("some_seconds_sum", {"model": "m"}, 1.25),
        ("some_seconds_count", {"model": "m"}, sum(counts)),
    ]


def test_a_summary_without_values_has_quantiles_that_are_no_numbers() -> None:
    samples = [((), Summary({0.5: math.nan, 0.999: 7}, 3, 9))]
    (middle, last, *totals) = parsed("some_us", Type.SUMMARY, "Times", (), samples)
    assert math.isnan(middle[2])
    assert last == ("some_us", {"quantile": "0.999"}, 7)
    assert totals == [("some_us_sum", {}, 9), ("some_us_count", {}, 3)]
