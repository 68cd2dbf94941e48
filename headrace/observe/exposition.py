"""Prometheus' text format: families of samples in, lines out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate


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


def expose(
    name: str,
    kind: Type,
    text: str,
    labels: Sequence[str],
    samples: Iterable[Sample],
    more: Callable[[tuple[str, ...]], Mapping[str, str]] = lambda _: {},
) -> Iterator[str]:
    """The lines of one family.

    Args:
        name: as it is on the page.
        kind: what its values are.
        text: what it is, for people.
        labels: names of the labels that all samples have.
        samples: one for each combination of values of these.
        more: further labels of the sample that has these values.
    """
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for values, value in samples:
        pairs = [*zip(labels, values, strict=True), *more(values).items()]
        known = ",".join([f'{label}="{_escaped(value)}"' for label, value in pairs])
        if isinstance(value, Histogram):
            yield from _histogram(name, known, value)
        elif isinstance(value, Summary):
            yield from _summary(name, known, value)
        else:
            yield f"{name}{_braced(known)} {_number(value)}"


def _histogram(name: str, labels: str, value: Histogram) -> list[str]:
    # Most lines of a page are made here.
    start = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
    counts = list(accumulate(value.counts))
    buckets = [f"{start}{bound} {count}" for bound, count in zip(_bounds(tuple(value.bounds)), counts, strict=True)]
    return [*buckets, *_totals(name, labels, counts[-1], value.sum)]


@lru_cache
def _bounds(bounds: tuple[float, ...]) -> list[str]:
    """The ends of the lines' names."""
    return [f'le="{bound}"}}' for bound in [*map(_number, bounds), "+Inf"]]


def _summary(name: str, labels: str, value: Summary) -> list[str]:
    start = f"{name}{{{labels}," if labels else f"{name}{{"
    quantiles = [f'{start}quantile="{_number(at)}"}} {_number(found)}' for at, found in value.quantiles.items()]
    return [*quantiles, *_totals(name, labels, value.count, value.sum)]


def _totals(name: str, labels: str, count: int, total: float) -> tuple[str, str]:
    braced = _braced(labels)
    return f"{name}_sum{braced} {_number(total)}", f"{name}_count{braced} {count}"


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _number(value: float) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if value.is_integer() and abs(value) < 1 << 53:
            return str(int(value))
    return str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
