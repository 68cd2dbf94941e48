"""Run `headrace serve` as a child process: free ports, readiness, and a clean end."""

import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from errors import DemoError
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

READY_SECONDS = 60
STOP_SECONDS = 30
POLL_SECONDS = 0.05
LOG_LINES = 15  # shown when the server does not become ready


class Server:
    """One server process. Leaving the `with` block ends it, whatever happened inside."""

    def __init__(self, repository: Path, log: Path) -> None:
        http, grpc, metrics = _free_ports(3)
        self.url = f"127.0.0.1:{grpc}"
        self.log = log
        ports = f"--http-port={http} --grpc-port={grpc} --metrics-port={metrics}".split()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "serve", repository, *ports],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo only, which then ends the server
            )

    def __enter__(self) -> "Server":
        return self

    def wait_until_ready(self, model: str) -> float:
        """Return after how many seconds the server and the model were ready."""
        began = time.monotonic()
        with InferenceServerClient(self.url) as client:
            while not _is_ready(client, model):
                if self._process.poll() is not None:
                    raise DemoError(f"the server ended before it was ready; {self._last_words()}")
                if time.monotonic() - began > READY_SECONDS:
                    raise DemoError(f"not ready after {READY_SECONDS} s; {self._last_words()}")
                time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def stop(self) -> int:
        """Ask the server to end, and return its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the server still ran {STOP_SECONDS} s after SIGTERM") from None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()  # does nothing where the process has ended
            self._process.wait()

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "its log ends with:\n" + "\n".join(f"    {line}" for line in lines)


def _is_ready(client: InferenceServerClient, model: str) -> bool:
    try:
        server_ready = client.is_server_ready(client_timeout=1)
        return bool(server_ready and client.is_model_ready(model, client_timeout=1))
    except InferenceServerException:  # nobody answers on the port yet
        return False


def _free_ports(count: int) -> list[int]:
    """Return ports nobody listens on; held together until all are known, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
