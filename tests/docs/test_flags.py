"""The page of flags is what the table writes, and the table has the flags of the real Triton."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from headrace.config.flags import FLAGS, page
from headrace.config.options import ServerOptions, flag_of
from tests.servers import ORACLE

LATER = {
    "--allow-client-shm",
    "--grpc-infer-thread-count",
    "--grpc-max-response-pool-size",
    "--http-max-input-size",
}
"""Flags of releases after the one that is here to be asked."""


def test_the_page_is_what_the_table_writes() -> None:
    assert Path("docs/flags.md").read_text() == page()


@pytest.mark.oracle
def test_every_flag_of_the_real_triton_is_in_the_table() -> None:
    if not ORACLE.exists():
        pytest.skip(f"the real Triton is not here: no {ORACLE}")
    told = subprocess.run([str(ORACLE), "--help"], capture_output=True, text=True, check=False)
    flags = dict(re.findall(r"(?m)^  (--[\w-]+)( <.*>)?$", told.stdout + told.stderr))
    del flags["--help"]
    assert FLAGS.keys() - flags.keys() == LATER
    assert flags.keys() - FLAGS.keys() == set()
    switches = {flag_of(row.name) for row in fields(ServerOptions) if row.metadata.get("flag")}
    assert {name for name, value in flags.items() if not value} == switches
