"""`headrace serve` in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tritonclient.utils import InferenceServerException

DEADLINE_S = 60.0


@contextmanager
def serving(repository: Path, log: Path) -> Iterator[str]:
    """Starts the server on free ports, gives its gRPC address, and stops it with SIGTERM at the end.

    Raises:
        SystemExit: when the server does not start, or does not end with status 0.
    """
    local = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    with log.open("wb") as out:
        command = [sys.executable, "-m", "headrace", "serve", str(repository), *local, *ports]
        # A session of its own: Ctrl-C reaches the demo only, which then ends the server.
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, it passes the `finally` below
    try:
        yield f"127.0.0.1:{_wait_for_port(process, log)}"
        process.send_signal(signal.SIGTERM)
        status = process.wait(DEADLINE_S)
        if status != 0:
            raise SystemExit(f"the server ended with status {status}; its log is {log}")
    except InferenceServerException as error:
        raise SystemExit(f"a request failed: {error}\nthe server's log is {log}") from None
    except subprocess.TimeoutExpired:
        raise SystemExit(f"the server still ran {DEADLINE_S:.0f} s after SIGTERM; its log is {log}") from None
    finally:
        process.kill()
        process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> str:
    """The gRPC port, from the line that the server prints when its models are loaded."""
    deadline = time.monotonic() + DEADLINE_S
    while (line := re.search(r"gRPC on \S+:(\d+)", log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server did not start; its log is {log}:\n{log.read_text()}")
        time.sleep(0.02)
    return line[1]
