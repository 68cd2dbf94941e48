"""The page for those who come from Triton, written from the tables that the code uses, so that it cannot lie:

python -m headrace.cli.comparison > docs/coming-from-triton.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.backend.engines import ENGINES
from headrace.config.features import BACKENDS, BASE, BETTER, FIELDS, METRICS, SAME, Feature, Field
from headrace.config.flags import SECTIONS, Fate, Flag
from headrace.config.options import flag_of
from headrace.config.validate import validate
from headrace.control.endpoints import ENDPOINTS, Endpoint
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text
from headrace.observe.metrics import FAMILIES

SERVED = "same"
LATER = "not yet"
NO_EFFECT = "no effect"
_NOT_SERVED = "is not served"
_IN_VAIN = "has no effect"


def page() -> str:
    """`docs/coming-from-triton.md`."""
    return (
        "\n".join([_INTRODUCTION, *_better(), *_same(), *_calls(), *_backends(), *_fields(), *_metrics(), *_flags()])
        + "\n"
    )


def fate_of(field: Field) -> str:
    """What becomes of a field of a config.

    Raises:
        ConfigError: when its example is wrong in itself.
    """
    config = ModelConfig()
    parse_text(f'{BASE} backend: "{field.backend}" {field.example}'.replace('backend: "" ', ""), config)
    try:
        hints = validate(config, ["GPU"])
    except ConfigError as error:
        if any(_NOT_SERVED not in problem for problem in error.problems):
            raise
        return LATER
    less = [hint.split(" is accepted; ")[-1] for hint in hints if _IN_VAIN not in hint]
    if less:
        return f"less: {'; '.join(less)}"
    return NO_EFFECT if hints else SERVED


_INTRODUCTION = """# Coming from Triton

<!-- Written by `python -m headrace.cli.comparison` from the tables that the code uses; `make fmt` does it. -->

Stop Triton, start `headrace serve` with the same arguments and model repository; clients stay as they are.
`headrace check MODELS` says beforehand which models would be served.

*Same* is as in Triton; *not yet* is refused with an error that names it; *no effect* is accepted, and the log
says so once. [differences.md](differences.md) has the answers that differ, [flags.md](flags.md) what becomes of
each flag and why, [statistics.md](statistics.md) what the numbers mean."""


def _table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _proof(feature: Feature) -> tuple[str, str]:
    return feature.text, f"`{feature.proof}`"


def _better() -> Iterator[str]:
    return _table("Better", ("", "by the test"), map(_proof, BETTER))


def _same() -> Iterator[str]:
    return _table("The same", ("", "by the test"), map(_proof, SAME))


def _calls() -> Iterator[str]:
    def row(endpoint: Endpoint) -> tuple[str, ...]:
        rpc = f"`{endpoint.verb}`" if endpoint.over_grpc else ""
        paths = "<br>".join(f"`{path}`" for path in endpoint.paths)
        return rpc, paths, SERVED if endpoint.is_served() else LATER

    return _table("Calls", ("gRPC", "HTTP", ""), map(row, ENDPOINTS))


def _backends() -> Iterator[str]:
    rows = ((f"`{name}`", text, SERVED if name in ENGINES else LATER) for name, text in BACKENDS)
    return _table("Backends", ("`backend`", "runs", ""), rows)


def _fields() -> Iterator[str]:
    rows = ((f"`{field.name}`", fate_of(field)) for field in FIELDS)
    return _table("Fields of config.pbtxt", ("field", ""), rows)


def _metrics() -> Iterator[str]:
    served = {family.name: family for family in FAMILIES}
    rows = [
        (f"`{name}`", _text_of(served[name].text) if name in served else "", SERVED if name in served else LATER)
        for name in METRICS
    ]
    rows += [
        (f"`{name}`", _text_of(family.text), "only here") for name, family in served.items() if name not in METRICS
    ]
    return _table("Metrics", ("family", "", ""), rows)


def _text_of(text: str) -> str:
    return text[0].lower() + text[1:] if text[1:2].islower() else text


def _flags() -> Iterator[str]:
    rows = ((f"`{flag.name}`", _fate(flag)) for flags in SECTIONS.values() for flag in flags)
    return _table("Flags", ("flag", ""), rows)


def _fate(flag: Flag) -> str:
    if flag.fate is Fate.REDIRECTED:
        return f"{SERVED}, as `{flag_of(flag.option)}`"
    return {Fate.SERVED: SERVED, Fate.HINT: NO_EFFECT, Fate.REFUSED: f"{LATER}: refused"}[flag.fate]


if __name__ == "__main__":
    print(page(), end="")
