"""Prometheus' text format: families of samples in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    """What the values of a family are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True)
class Histogram:
    """The value of one sample of a histogram."""

    bounds: Sequence[float]
    """Upper bounds of the buckets, in the family's unit; one more bucket has no bound."""
    counts: Sequence[int]
    """How many values each bucket has, the one without a bound last."""
    sum: float


@dataclass(frozen=True)
class Summary:
    """The value of one sample of a summary."""

    quantiles: Mapping[float, float]
    count: int
    sum: float


Value = float | Histogram | Summary
Sample = tuple[tuple[str, ...], Value]
"""The labels' values, and the sample's."""


def expose(name: str, kind: Type, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of one family."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for values, value in samples:
        known = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(labels, values, strict=True))
        yield from _lines(name, known, value)


def _lines(name: str, labels: str, value: Value) -> Iterator[str]:
    if isinstance(value, Histogram):
        below = 0
        for bound, count in zip([*map(_number, value.bounds), "+Inf"], value.counts, strict=True):
            below += count
            yield _line(f"{name}_bucket", _joined(labels, f'le="{bound}"'), below)
        yield from _totals(name, labels, below, value.sum)
    elif isinstance(value, Summary):
        for quantile, at in value.quantiles.items():
            yield _line(name, _joined(labels, f'quantile="{_number(quantile)}"'), at)
        yield from _totals(name, labels, value.count, value.sum)
    else:
        yield _line(name, labels, value)


def _totals(name: str, labels: str, count: int, total: float) -> Iterator[str]:
    yield _line(f"{name}_sum", labels, total)
    yield _line(f"{name}_count", labels, count)


def _line(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"


def _joined(labels: str, more: str) -> str:
    return f"{labels},{more}" if labels else more


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    return str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
