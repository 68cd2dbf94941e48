"""Which latencies the metrics page has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Latencies:
    """As `--metrics-config` says."""

    counters: bool = True
    histograms: bool = False
    summaries: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    """Of the summaries."""
