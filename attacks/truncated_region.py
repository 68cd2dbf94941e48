"""A client truncates its region while requests on it wait, and again while the engine reads a view of it.

The pages are gone, so a read of them is a bus error. Its requests fail with a text that names the region; the server
lives, and the region works again once it is registered at its new size.
"""

from __future__ import annotations

import tritonclient.grpc as grpcclient

from attacks.story import Region, Victim, must_fail, start, tell


def attack(victim: Victim) -> None:
    """Truncates at two moments."""
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        while_waiting(victim, client)
        while_reading(client)


def while_waiting(victim: Victim, client: grpcclient.InferenceServerClient) -> None:
    region = Region("headrace_attack_waiting")
    try:
        region.register(client)
        first = start(client, "pairs", region)
        victim.until_waiting("pairs", 1)
        region.truncate()
        second = start(client, "pairs", region)
        must_fail(first, "was truncated while it was in use")
        must_fail(second, "was truncated while it was in use")
        client.unregister_system_shared_memory(region.name)
        region.truncate(region.size)
        region.register(client)
        start(client, "add", region).result(60)
    finally:
        client.unregister_system_shared_memory(region.name)
        region.unlink()


def while_reading(client: grpcclient.InferenceServerClient) -> None:
    """Many rounds, so that some truncations fall into a read. Each request is answered, well or with the error."""
    region = Region("headrace_attack_reading")
    try:
        for _ in range(30):
            region.register(client)
            futures = [start(client, "add", region) for _ in range(4)]
            region.truncate()
            for future in futures:
                error = future.exception(60)
                assert error is None or "was truncated while it was in use" in str(error), error
            client.unregister_system_shared_memory(region.name)
            region.truncate(region.size)
    finally:
        region.unlink()


if __name__ == "__main__":
    tell(attack)
