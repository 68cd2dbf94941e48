"""Servers shared by the tests of a file: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import ORACLE, RunningServer, start_headrace, start_oracle

Start = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers that are stopped, and must stop well, at the end of the file."""
    running: list[RunningServer] = []

    def start_one(repository: Path, *options: str) -> RunningServer:
        server = start_headrace(repository, tmp_path_factory.mktemp("log") / "server.log", *options)
        running.append(server)
        return server

    yield start_one
    for server in running:
        if server.process.poll() is None:
            assert server.stop() == 0, server.log.read_text()


@pytest.fixture(scope="module")
def start_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts the real Triton; skips where it is not provided."""
    if not ORACLE.exists():
        pytest.skip(f"the real Triton is not here: no {ORACLE} (HEADRACE_SHARED says where to look)")
    running: list[RunningServer] = []

    def start_one(repository: Path, *options: str) -> RunningServer:
        server = start_oracle(repository, tmp_path_factory.mktemp("log") / "oracle.log", *options)
        running.append(server)
        return server

    yield start_one
    for server in running:
        server.process.kill()
        server.process.wait()
