"""The values of `--metrics-config`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.config.nearest import nearest
from headrace.core.errors import ConfigError
from headrace.core.latencies import Latencies

_FIELDS = {
    "counter_latencies": "counters",
    "histogram_latencies": "histograms",
    "summary_latencies": "summaries",
    "summary_quantiles": "quantiles",
}
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def parse_latencies(settings: Sequence[str]) -> Latencies:
    """What `<setting>=<value>` say together; of a setting that is there twice the last counts.

    Raises:
        ConfigError: naming the setting, what came and what was expected.
    """
    latencies = Latencies()
    for text in settings:
        name, _, value = text.partition("=")
        if name not in _FIELDS:
            known = nearest(name, list(_FIELDS))
            hint = f"did you mean '{known}'?" if known else f"there are {', '.join(_FIELDS)}"
            raise ConfigError(f"--metrics-config={text}: unknown setting '{name}'; {hint}")
        parsed: Any = _quantiles(text, value) if name == "summary_quantiles" else _boolean(text, value)
        latencies = replace(latencies, **{_FIELDS[name]: parsed})
    return latencies


def _boolean(text: str, value: str) -> bool:
    if value.lower() not in _BOOLEANS:
        raise ConfigError(f"--metrics-config={text}: expected true or false, got '{value}'")
    return _BOOLEANS[value.lower()]


def _quantiles(text: str, value: str) -> tuple[float, ...]:
    return tuple(_quantile(text, pair) for pair in value.split(","))


def _quantile(text: str, pair: str) -> float:
    """`0.99:0.001`: the error is how far off the quantile's rank may be."""
    quantile, _, error = pair.partition(":")
    error = error or "0"
    try:
        if 0 <= float(quantile) <= 1 and 0 <= float(error) <= 1:
            return float(quantile)
    except ValueError:
        pass
    raise ConfigError(
        f"--metrics-config={text}: expected <quantile>:<error> from 0 to 1 each, such as 0.99:0.001, got '{pair}'"
    )
