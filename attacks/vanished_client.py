"""Clients die in the middle of everything: with requests waiting, with half a message sent, with answers unread.

What they left leaves the queue, and their regions can be registered anew by others.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import tritonclient.grpc as grpcclient

from attacks.story import Region, Victim, start, tell

DYING = """
import sys, tritonclient.grpc as grpcclient
from attacks.story import Region, Victim, start
victim = Victim(*sys.argv[1:])
client = grpcclient.InferenceServerClient(victim.grpc)
region = Region("headrace_attack_vanished")
region.register(client)
start(client, "pairs", region)
victim.until_waiting("pairs", 1)
print("waiting", flush=True)
sys.stdin.read()
"""


def attack(victim: Victim) -> None:
    """Kills, then hangs up."""
    dying = subprocess.Popen(
        [sys.executable, "-c", DYING, victim.grpc, victim.http, victim.metrics],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
    )
    assert dying.stdout is not None
    assert dying.stdout.readline() == b"waiting\n"
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    victim.until_waiting("pairs", 0)
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        client.unregister_system_shared_memory("headrace_attack_vanished")
        region = Region("headrace_attack_vanished")
        region.register(client)
        start(client, "add", region).result(60)
        client.unregister_system_shared_memory(region.name)
        region.unlink()
    for _ in range(50):
        hang_up(victim.http, b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        hang_up(victim.grpc, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        hang_up(victim.http, b"GET /v2/models/stats HTTP/1.1\r\nHost: x\r\n\r\n")


def hang_up(address: str, data: bytes) -> None:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)


if __name__ == "__main__":
    tell(attack)
