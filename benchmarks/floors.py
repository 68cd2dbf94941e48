"""Floors: what the machine itself takes for the bytes of a request, measured in the same run."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.scenarios import Scenario

MESSAGE_BYTES = 200
"""About the size of a small request, headers included."""
_ROUNDS, _ROWS = 5, 32
_ECHO_S = 1.0


def measure(scenario: Scenario) -> dict[str, float]:
    """The floors of a scenario; `cpu_us` is their sum: no server of this design can take less for a request."""
    floor = echo(scenario.concurrency)
    if scenario.copies is not None:
        floor["model_us"] = cut_us()
    if scenario.copies:
        floor["copy_in_us"] = copy_us(scenario.bytes_in)
        floor["copy_out_us"] = copy_us(scenario.bytes_out)
    parts = ("echo_cpu_us", "model_us", "copy_in_us", "copy_out_us")
    return {**floor, "cpu_us": sum(floor.get(part, 0.0) for part in parts)}


def echo(in_flight: int) -> dict[str, float]:
    """A process that sends back what it reads, over loopback TCP: round trip of all in flight, and its CPU for one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        program = [sys.executable, "-c", _ECHO_PROGRAM, port]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection:
                times = _exchange(connection, bytes(MESSAGE_BYTES * in_flight))
            cpu_s = float(process.communicate()[0])
    return {"round_trip_us": float(np.median(times)) * 1e6, "echo_cpu_us": cpu_s * 1e6 / (len(times) * in_flight)}


_ECHO_PROGRAM = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
began = time.process_time()
while message := connection.recv(1 << 16):
    connection.sendall(message)
print(time.process_time() - began)
"""


def _exchange(connection: socket.socket, message: bytes) -> list[float]:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times, end = [], time.perf_counter() + _ECHO_S
    while (began := time.perf_counter()) < end:
        connection.sendall(message)
        connection.recv(len(message), socket.MSG_WAITALL)
        times.append(time.perf_counter() - began)
    connection.shutdown(socket.SHUT_WR)
    return times


def copy_us(nbytes: int) -> float:
    """Copying one request's tensor into a batch. All requests have one source, as perf_analyzer's do."""
    source = np.ones(nbytes, np.uint8)
    return _best_us(lambda row: np.copyto(row, source), np.zeros((_ROWS, nbytes), np.uint8))


def cut_us() -> float:
    """The model's own work for the founding report's tensors: [144, 5120] cut to [84, 5040], into a batch."""
    part = np.ones((144, 5120), np.uint16)[:84, :5040]  # NumPy copies FP16 no faster than any two bytes
    return _best_us(lambda row: np.copyto(row, part), np.zeros((_ROWS, 84, 5040), np.uint16))


def _best_us(act: Callable[[np.ndarray], None], rows: np.ndarray) -> float:
    """Microseconds for each row, of the best of some rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for row in rows:
            act(row)
        best = min(best, (time.perf_counter() - began) / len(rows))
    return best * 1e6
