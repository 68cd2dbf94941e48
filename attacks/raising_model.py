"""A client sends values that make the engine raise: an index out of a table.

Its requests fail with the engine's words; the next one is served by the same instance.
"""

from __future__ import annotations

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from attacks.story import Victim, tell


def attack(victim: Victim) -> None:
    """Bad and good in turn."""
    with grpcclient.InferenceServerClient(victim.grpc) as client:
        for _ in range(50):
            try:
                look_up(client, 99)
            except InferenceServerException as error:
                assert "failed" in str(error), error
            else:
                raise AssertionError("index 99 of 4 was found")
            assert look_up(client, 2) == 2


def look_up(client: grpcclient.InferenceServerClient, index: int) -> float:
    tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.array([[index]], np.int64))
    return float(client.infer("gather", [tensor]).as_numpy("OUTPUT0")[0, 0])


if __name__ == "__main__":
    tell(attack)
