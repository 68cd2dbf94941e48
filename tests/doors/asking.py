"""Requests in the background, so that a test can look at the server while they wait."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.metrics import read_metric
from tests.servers import RunningServer


def fp32_input(array: np.ndarray, name: str = "INPUT0") -> grpcclient.InferInput:
    tensor = grpcclient.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array.astype(np.float32))
    return tensor


def ask(
    client: grpcclient.InferenceServerClient,
    model: str,
    array: np.ndarray,
    name: str = "INPUT0",
    output: str = "OUTPUT0",
    **options: object,
):
    """A `(future, call)` of one gRPC inference; the call can be cancelled."""
    future: Future = Future()

    def done(result: grpcclient.InferResult | None, error: InferenceServerException | None) -> None:
        if error is None:
            future.set_result(result.as_numpy(output))
        else:
            future.set_exception(error)

    return future, client.async_infer(model, [fp32_input(array, name)], done, **options)


def until_waiting(server: RunningServer, model: str, count: int) -> None:
    """Returns when just so many requests wait in the model's queue; the test's timeout ends it otherwise."""
    while read_metric(server, "nv_inference_pending_request_count", model=model) != count:
        pass
