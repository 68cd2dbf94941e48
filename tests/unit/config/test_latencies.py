"""`--metrics-config`: what is said counts, what is wrong is named."""

from __future__ import annotations

import pytest

from headrace.config.latencies import parse_latencies
from headrace.core.errors import ConfigError
from headrace.core.latencies import Latencies


def test_by_default_there_are_counters() -> None:
    assert parse_latencies([]) == Latencies(counters=True, histograms=False, summaries=False)


def test_the_last_word_counts() -> None:
    said = ["summary_latencies=true", "counter_latencies=0", "summary_latencies=off", "histogram_latencies=TRUE"]
    assert parse_latencies(said) == Latencies(counters=False, histograms=True, summaries=False)
    assert parse_latencies(["summary_quantiles=0.5:0.05,0.99:0.001"]).quantiles == (0.5, 0.99)
    assert parse_latencies(["summary_quantiles=0.5"]).quantiles == (0.5,)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("summary_latency=true", "unknown setting 'summary_latency'; did you mean 'summary_latencies'?"),
        ("nothing", "unknown setting 'nothing'; there are counter_latencies"),
        ("summary_latencies=maybe", "expected true or false, got 'maybe'"),
        ("summary_latencies", "expected true or false, got ''"),
        ("summary_quantiles=1.5:0.1", "got '1.5:0.1'"),
        ("summary_quantiles=0.5:0.05,", "got ''"),
        ("summary_quantiles=half", "got 'half'"),
        ("summary_quantiles=nan:0.1", "got 'nan:0.1'"),
    ],
)
def test_mistakes_are_named(said: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_latencies([said])
    assert words in str(raised.value)
    assert f"--metrics-config={said}" in str(raised.value)
