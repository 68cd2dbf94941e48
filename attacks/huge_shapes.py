"""A client sends shapes whose input weighs nothing and whose output would fill the address space, and a sparse region.

There is no such memory: an error, for that request alone.
"""

from __future__ import annotations

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from attacks.story import Region, Victim, tell


def attack(victim: Victim) -> None:
    """Sums over an empty axis, then a region of 16 TiB with nothing in it."""
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        for rows in (1 << 50, (1 << 60) + 1000, (1 << 61) - 1):
            tensor = grpcclient.InferInput("INPUT0", [rows, 0], "FP32")
            tensor.set_data_from_numpy(np.zeros((rows, 0), np.float32))
            refused(client, "sum", [tensor])
        region = Region("headrace_attack_sparse", 4096)
        try:
            region.truncate(1 << 44)
            region.size = 1 << 44
            region.register(client)
            tensor = grpcclient.InferInput("INPUT0", [1, 1 << 42], "FP32")
            tensor.set_shared_memory(region.name, 1 << 44)
            refused(client, "echo", [tensor])
        finally:
            client.unregister_system_shared_memory(region.name)
            region.unlink()


def refused(client: grpcclient.InferenceServerClient, model: str, tensors: list[grpcclient.InferInput]) -> None:
    try:
        client.infer(model, tensors, client_timeout=60)
    except InferenceServerException as error:
        assert "UNAVAILABLE" in str(error) or "INTERNAL" in str(error), error
    else:
        raise AssertionError(f"{model} answered")


if __name__ == "__main__":
    tell(attack)
