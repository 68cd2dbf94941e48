"""Floors: what the machine itself takes for the bytes of a request, measured in the same run."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np

_ROUNDS = 5


def copy_us(nbytes: int, rows: int = 32) -> float:
    """Microseconds for copying one request's tensor of `nbytes` into a batch of `rows`; the best of some rounds."""
    source = np.ones(nbytes, np.uint8)
    batch = np.zeros((rows, nbytes), np.uint8)
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for row in batch:
            np.copyto(row, source)
        best = min(best, (time.perf_counter() - began) / rows)
    return best * 1e6


def round_trip_us(nbytes: int = 200, trips: int = 4000) -> float:
    """Median microseconds for sending so many bytes over loopback TCP to another thread and back."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_send_back, args=(listener, nbytes), daemon=True).start()
    with socket.create_connection(listener.getsockname()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message, times = bytes(nbytes), []
        for _ in range(trips):
            began = time.perf_counter()
            connection.sendall(message)
            connection.recv(nbytes, socket.MSG_WAITALL)
            times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e6


def _send_back(listener: socket.socket, nbytes: int) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while message := connection.recv(nbytes, socket.MSG_WAITALL):
            connection.sendall(message)
