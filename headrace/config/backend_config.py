"""`--backend-config`: settings of backends as a whole, `<backend>,<key>=<value>`, or `<key>=<value>` for all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.core.errors import ConfigError

MAX_BATCH = "default-max-batch-size"
POOL = "enable-global-threadpool"
VERSION_COMPATIBLE = "version-compatible"
PLUGINS = "plugins"
NO_EFFECT = ("coalesce-request-input", "execution-policy")
"""Settings of Triton's TensorRT backend for what is always, or never, so here."""
POOL_SIZES = ("intra_op_thread_count", "inter_op_thread_count")
SECONDS = ("stub-timeout-seconds", "execute-timeout-seconds")
_SWITCHES = {"1": "1", "true": "1", "0": "0", "false": "0"}
_LIMITS = {MAX_BATCH: 1 << 20, **dict.fromkeys(POOL_SIZES, 1024), **dict.fromkeys(SECONDS, 1 << 20)}
_KEYS: Mapping[str, tuple[str, ...]] = {
    "": (MAX_BATCH,),
    "onnxruntime": (MAX_BATCH, POOL, *POOL_SIZES),
    "pytorch": (MAX_BATCH,),
    "identity": (MAX_BATCH,),
    "python": (MAX_BATCH, *SECONDS),
    "tensorrt": (MAX_BATCH, VERSION_COMPATIBLE, PLUGINS, *NO_EFFECT),
}
"""What may be set, by backend; of the empty name, for all."""


@dataclass(frozen=True)
class BackendConfig:
    """The settings by backend; those for all have the empty name."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    """Settings that have no effect, for the log."""

    def of(self, backend: str) -> Mapping[str, str]:
        """The settings of a backend: its own before those for all."""
        return {**self.settings.get("", {}), **self.settings.get(backend, {})}

    def max_batch(self, backend: str, default: int) -> int:
        """Rows for a model that can batch and whose config does not say how many; 0 or 1: none but one."""
        return int(self.of(backend).get(MAX_BATCH, default))


def parse_backend_config(given: Iterable[str]) -> BackendConfig:
    """Reads the values of the option; of two for one key the later holds.

    Raises:
        ConfigError: naming the first value that is wrong, and what was expected.
    """
    settings: dict[str, dict[str, str]] = {}
    remarks = []
    for text in given:
        backend, key, value = _split(text)
        if backend in _KEYS:
            settings.setdefault(backend, {})[key] = _checked(text, backend, key, value)
        else:
            remarks.append(f"--backend-config={text} has no effect: backend '{backend}' has no settings here")
    pool = settings.get("onnxruntime", {})
    if pool.get(POOL, "0") == "0":
        remarks += [
            f"--backend-config=onnxruntime,{key} has no effect without {POOL}=1" for key in POOL_SIZES if key in pool
        ]
    given_to_tensorrt = settings.get("tensorrt", {})
    remarks += [f"--backend-config=tensorrt,{key} has no effect here" for key in NO_EFFECT if key in given_to_tensorrt]
    return BackendConfig(settings, tuple(remarks))


def _split(text: str) -> tuple[str, str, str]:
    setting, equals, value = text.partition("=")
    backend, comma, key = setting.partition(",")
    if not comma:
        backend, key = "", setting
    if not equals or not key:
        raise ConfigError(f"--backend-config={text}: expected <backend>,<key>=<value> or <key>=<value>")
    return backend.strip(), key.strip(), value.strip()


def _checked(text: str, backend: str, key: str, value: str) -> str:
    keys = _KEYS[backend]
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there is {', '.join(keys)}"
        raise ConfigError(f"--backend-config={text}: unknown setting '{key}'; {hint}")
    if key == PLUGINS or key in NO_EFFECT:
        return value
    if key in (POOL, VERSION_COMPATIBLE):
        if value.lower() not in _SWITCHES:
            raise ConfigError(f"--backend-config={text}: {key} must be 1, true, 0 or false, got '{value}'")
        return _SWITCHES[value.lower()]
    if not (value.isascii() and value.isdigit() and int(value) <= _LIMITS[key]):
        raise ConfigError(f"--backend-config={text}: {key} must be a number within 0 and {_LIMITS[key]}, got '{value}'")
    return value
