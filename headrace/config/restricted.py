"""`--http-restricted-api` and `--grpc-restricted-protocol`: `<category>[,<category>…]:<header>=<value>`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.core.errors import ConfigError

CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""Of verbs; Triton's."""
GRPC_PREFIX = "triton-grpc-protocol-"
"""Of the header over gRPC."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def parse_restricted(flag: str, given: Iterable[str], prefix: str = "") -> list[tuple[str, str, str]]:
    """Category, header (lower case) and value, one row for each category.

    Raises:
        ConfigError: naming the first value that is wrong, and what was expected.
    """
    rows: dict[str, tuple[str, str, str]] = {}
    for text in given:
        names, colon, pair = text.partition(":")
        header, equals, value = pair.partition("=")
        if not (colon and equals and _TOKEN.fullmatch(header) and value.isascii() and value.isprintable() and value):
            raise ConfigError(f"{flag}={text}: expected <category>[,<category>…]:<header>=<value>")
        for name in names.split(","):
            if name not in CATEGORIES:
                raise ConfigError(f"{flag}={text}: unknown category '{name}'; there is {', '.join(CATEGORIES)}")
            if name in rows:
                raise ConfigError(f"{flag}={text}: category '{name}' is restricted by two options")
            rows[name] = (name, (prefix + header).lower(), value)
    return list(rows.values())
