"""Triton's command line: what becomes of each of its flags.

A flag that Headrace has, under its name or another, is an option (`headrace/config/options.py`). Of the others,
one that would change results or accepted requests is refused with the reason, unless its value asks for
nothing; one that is only a hint is accepted and logged once. `docs/flags.md` is written from this table:

    python -m headrace.config.flags > docs/flags.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from headrace.config.options import ServerOptions, flag_of
from headrace.core.errors import ConfigError


class Fate(StrEnum):
    """What becomes of a flag."""

    SERVED = "served"
    REDIRECTED = "served as"
    HINT = "no effect"
    REFUSED = "refused"


@dataclass(frozen=True)
class Flag:
    """One of Triton's."""

    name: str
    """With its dashes."""
    fate: Fate
    text: str = ""
    """For a hint what Headrace does, for a refused one the reason."""
    option: str = ""
    """The field of `ServerOptions` that serves it."""
    unless: tuple[str, ...] = ()
    """Values of a refused flag that ask for nothing, and are accepted."""

    def asks_for_nothing(self, value: str) -> bool:
        """Whether this value of a refused flag is what Headrace does anyway."""
        return value.lower() in self.unless

    def accepted(self) -> str:
        """The values that are accepted of a refused flag, for people."""
        return ", ".join(f"`{value}`" if value else "nothing" for value in self.unless)


OFF = ("false", "off", "0")


def _served(*names: str) -> list[Flag]:
    return [Flag(f"--{name}", Fate.SERVED, option=name.replace("-", "_")) for name in names]


def _redirected(name: str, option: str) -> Flag:
    return Flag(f"--{name}", Fate.REDIRECTED, option=option)


def _hint(name: str, text: str) -> Flag:
    return Flag(f"--{name}", Fate.HINT, text)


def _refused(name: str, text: str, unless: tuple[str, ...] = ()) -> Flag:
    return Flag(f"--{name}", Fate.REFUSED, text, unless=unless)


_HEADERS = "headers are not forwarded to models"
_REUSE = "two servers on one port are not served"
_PINGS = "pings are answered and never counted against a client"
_TRACE = "traces are not served yet"
_SAGEMAKER = "SageMaker's door is not served"
_VERTEX = "Vertex AI's door is not served"
_CACHE = "responses are not cached; a model whose config wants it is refused"
_POOLS = "memory is taken as it is needed and kept"
SECTIONS: Mapping[str, Sequence[Flag]] = {
    "Server": _served("id", "exit-timeout-secs"),
    "Logging": [
        *_served("log-verbose", "log-info"),
        _hint("log-warning", "there are events, errors and details, and no warnings"),
        *_served("log-error", "log-format", "log-file"),
    ],
    "Models": [
        *_served("model-repository"),
        _redirected("model-store", "model_repository"),
        *_served("exit-on-error", "strict-readiness", "model-control-mode", "load-model"),
        _hint("repository-poll-secs", "repositories are read once, at the start"),
        *_served("disable-auto-complete-config"),
        _refused("strict-model-config", "say --disable-auto-complete-config", OFF),
        *_served("model-config-name"),
        _hint("model-load-thread-count", "models are loaded one after another"),
        _hint("model-load-retry-count", "a load is tried once"),
        _refused("model-namespacing", "a model's name must be in one repository only", OFF),
        _hint("enable-peer-access", "the driver decides between which GPUs it copies directly"),
        _refused("model-load-gpu-limit", "loads are not refused for what a GPU's memory holds already"),
    ],
    "HTTP": [
        *_served("allow-http", "http-address", "http-port"),
        _refused("reuse-http-port", _REUSE, OFF),
        _redirected("http-thread-count", "wire_threads"),
        _refused("http-header-forward-pattern", _HEADERS, ("",)),
        *_served("http-max-input-size"),
        *_served("http-restricted-api"),
    ],
    "gRPC": [
        *_served("allow-grpc", "grpc-address", "grpc-port"),
        _refused("reuse-grpc-port", _REUSE, OFF),
        _hint("grpc-infer-thread-count", "the threads of all doors are --wire-threads"),
        _hint("grpc-infer-allocation-pool-size", _POOLS),
        _hint("grpc-max-response-pool-size", _POOLS),
        _refused("grpc-header-forward-pattern", _HEADERS, ("",)),
        *_served("grpc-use-ssl", "grpc-use-ssl-mutual", "grpc-server-cert", "grpc-server-key", "grpc-root-cert"),
        *_served("grpc-infer-response-compression-level", "grpc-keepalive-time", "grpc-keepalive-timeout"),
        _hint("grpc-keepalive-permit-without-calls", "connections without calls are pinged, too"),
        _hint("grpc-http2-max-pings-without-data", "pings go on as --grpc-keepalive-time says"),
        _hint("grpc-http2-min-recv-ping-interval-without-data", _PINGS),
        _hint("grpc-http2-max-ping-strikes", _PINGS),
        _hint("grpc-max-connection-age", "connections are not closed for their age"),
        _hint("grpc-max-connection-age-grace", "connections are not closed for their age"),
        *_served("grpc-restricted-protocol"),
    ],
    "Clouds": [
        _refused("allow-sagemaker", _SAGEMAKER, OFF),
        _hint("sagemaker-port", _SAGEMAKER),
        _hint("sagemaker-safe-port-range", _SAGEMAKER),
        _hint("sagemaker-thread-count", _SAGEMAKER),
        _refused("allow-vertex-ai", _VERTEX, OFF),
        _hint("vertex-ai-port", _VERTEX),
        _hint("vertex-ai-thread-count", _VERTEX),
        _hint("vertex-ai-default-model", _VERTEX),
    ],
    "Metrics": [
        *_served("allow-metrics", "allow-gpu-metrics", "allow-cpu-metrics", "metrics-address", "metrics-port"),
        *_served("metrics-interval-ms", "metrics-config"),
    ],
    "Traces": [
        _refused("trace-config", _TRACE, ("level=off", "mode=triton")),
        _refused("trace-level", _TRACE, ("off",)),
        _hint("trace-file", _TRACE),
        _hint("trace-rate", _TRACE),
        _hint("trace-count", _TRACE),
        _hint("trace-log-frequency", _TRACE),
    ],
    "Backends": [
        _hint("backend-directory", "backends are Python packages, not shared libraries"),
        *_served("backend-config"),
        _hint("repoagent-directory", "a model whose config wants an agent is refused"),
    ],
    "Response cache": [
        _hint("cache-config", _CACHE),
        _hint("cache-directory", _CACHE),
        _hint("response-cache-byte-size", _CACHE),
    ],
    "Rate limiter": [
        _refused("rate-limit", "an instance runs as soon as it is free", ("off",)),
        _refused("rate-limit-resource", "an instance runs as soon as it is free"),
    ],
    "Memory and devices": [
        _hint("pinned-memory-pool-byte-size", _POOLS),
        _hint("cuda-memory-pool-byte-size", _POOLS),
        _hint("cuda-virtual-address-size", _POOLS),
        _hint("min-supported-compute-capability", "every GPU that the driver shows is used"),
        _hint("buffer-manager-thread-count", "tensors are copied by the threads of the instances"),
        _hint("host-policy", "threads and memory are not bound to NUMA nodes or cores"),
        *_served("allow-client-shm"),
    ],
}
"""All flags of Triton up to 26.08, by the sections of its own help."""
FLAGS = {flag.name: flag for flags in SECTIONS.values() for flag in flags}


def other_flags() -> list[Flag]:
    """Flags that are no option of Headrace: hints and refused ones."""
    return [flag for flag in FLAGS.values() if not flag.option]


def other_names(option: str) -> list[str]:
    """Triton's other names for an option of Headrace."""
    return [flag.name for flag in FLAGS.values() if flag.fate is Fate.REDIRECTED and flag.option == option]


def judge(given: Mapping[str, Iterable[str]]) -> list[str]:
    """Remarks for the log about Triton's flags that have no effect.

    Args:
        given: values by the names of flags, without those that are options of Headrace.

    Raises:
        ConfigError: for the first that is refused.
    """
    remarks = []
    for name, values in given.items():
        flag = FLAGS[name]
        for value in values:
            if flag.fate is Fate.REFUSED and not flag.asks_for_nothing(value):
                accepted = f" (accepted: {flag.accepted().replace('`', '')})" if flag.accepted() else ""
                raise ConfigError(f"{name}={value} is refused: {flag.text}{accepted}")
            if flag.fate is Fate.HINT:
                remarks.append(f"{name}={value} has no effect: {flag.text}")
    return remarks


def page() -> str:
    """`docs/flags.md`."""
    lines = [_INTRODUCTION]
    for section, flags in SECTIONS.items():
        lines += [f"\n## {section}\n", "| Triton's flag | here | |", "| --- | --- | --- |"]
        lines += [_row(flag) for flag in flags]
    triton = {flag.option for flag in FLAGS.values()}
    lines += ["\n## Only here\n", "| option | default | |", "| --- | --- | --- |"]
    for row in fields(ServerOptions):
        if row.name not in triton:
            lines.append(f"| `{flag_of(row.name)}` | {row.default} | {row.metadata['help']} |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = """# Triton's flags

<!-- Written by `python -m headrace.config.flags`: change the table in headrace/config/flags.py instead. -->

`headrace serve` takes Triton's command line. *Served* is as in Triton; *served as* names Headrace's option;
*no effect* is a hint that is accepted and logged once; *refused* ends the start with the reason, because
ignoring the flag would change results or who may ask what. Booleans are `true`, `on`, `1`, `false`, `off`, `0`;
a value follows `=` or a space. An unknown flag is answered with the nearest valid name.

Every option can be set in the environment, too: `--http-port` is `HEADRACE_HTTP_PORT`."""


def _row(flag: Flag) -> str:
    if flag.fate is Fate.REFUSED:
        accepted = f"accepted: {flag.accepted()}" if flag.accepted() else ""
        return f"| `{flag.name}` | {flag.fate} | {'; '.join(filter(None, [flag.text, accepted]))} |"
    if flag.fate is Fate.HINT:
        return f"| `{flag.name}` | {flag.fate} | {flag.text} |"
    option = next(row for row in fields(ServerOptions) if row.name == flag.option)
    fate = flag.fate if flag.fate is Fate.SERVED else f"{flag.fate} `{flag_of(option.name)}`"
    return f"| `{flag.name}` | {fate} | {option.metadata['help']} |"


if __name__ == "__main__":
    print(page(), end="")
