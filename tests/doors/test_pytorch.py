"""PyTorch models on the CPU and, where there is one, on a GPU: what a file holds, and whose name means what."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.doors.asking import ask
from tests.servers import RunningServer

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from tests import models_torch as models  # noqa: E402 - it imports PyTorch

KINDS = [
    "KIND_CPU",
    pytest.param(
        "KIND_GPU",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")],
    ),
]
IMAGE = [3, 16, 24]
CONVOLVED = models.sides({"x": IMAGE}, {"y": [8, 16, 24]}, 8) + "dynamic_batching {}\n"


@pytest.fixture(scope="module", params=KINDS)
def kind(request) -> str:
    return request.param


def switch(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def write_models(repository: Path, kind: str) -> None:
    group = f"instance_group {{ kind: {kind} }}\n"
    example = torch.randn(4, *IMAGE)
    models.script(repository, "script", models.Convolution(), CONVOLVED + group)
    models.script(repository, "eager", models.Convolution(), CONVOLVED + group + switch("cuda_graphs", "false"))
    models.script(repository, "last", models.Convolution(), CONVOLVED + group + switch("channels_last", "true"))
    models.export(repository, "exported", models.Convolution(), CONVOLVED + group, example)
    if kind == "KIND_GPU":
        compiled = CONVOLVED + group + switch("compile", "true")
        models.script(repository, "compiled", models.Convolution(), compiled + switch("channels_last", "true"))
        models.export(repository, "compiled_export", models.Convolution(), compiled, torch.randn(8, *IMAGE))
    half = models.sides({"x": IMAGE}, {"y": [8, 16, 24]}, 8, "FP16") + group
    models.script(repository, "half", models.Convolution(), half)
    pairs = {"left": [4], "right": [4]}
    for name, module, inputs, outputs in [
        ("arguments", models.Two(), {"right": [4], "left": [4]}, {"difference": [4], "sum": [4]}),
        ("positions", models.Two(), {"I__1": [4], "I__0": [4]}, {"O__1": [4], "O__0": [4]}),
        ("second", models.Two(), pairs, {"O__1": [4]}),
        ("order", models.Two(), {"a": [4], "b": [4]}, {"c": [4], "d": [4]}),
        ("named", models.Named(), pairs, {"sum": [4], "difference": [4]}),
    ]:
        models.script(repository, name, module, models.sides(inputs, outputs, 8) + group)
    models.script(repository, "lacking", models.Named(), models.sides(pairs, {"product": [4]}, 8) + group)
    models.script(repository, "sizes", models.Affine(), CONVOLVED + group + switch("cuda_graph_batch_sizes", "1,9"))
    models.script(repository, "typo", models.Affine(), CONVOLVED + group + switch("cuda_graphs", "ture"))


@pytest.fixture(scope="module")
def server(start, tmp_path_factory, kind: str) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, kind)
    return start(repository, "--strict-readiness=false")


@pytest.fixture
def client(server: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def asked(client, model: str, inputs: dict[str, np.ndarray]) -> grpcclient.InferResult:
    tensors = []
    for name, array in inputs.items():
        tensor = grpcclient.InferInput(name, list(array.shape), "FP16" if array.dtype == np.float16 else "FP32")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return client.infer(model, tensors)


@pytest.mark.parametrize("model", ["script", "eager", "last", "exported", "half"])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_every_kind_of_file_computes_what_the_module_does(client, model: str, rows: int) -> None:
    images = np.random.default_rng(rows).standard_normal((rows, *IMAGE), dtype=np.float32)
    expected = models.Convolution()(torch.from_numpy(images)).detach().numpy()
    given = images.astype(np.float16) if model == "half" else images
    result = asked(client, model, {"x": given}).as_numpy("y")
    assert result.dtype == given.dtype
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("model", ["compiled", "compiled_export"])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_what_inductor_compiled_computes_what_the_module_does(client, kind: str, model: str, rows: int) -> None:
    if kind == "KIND_CPU":
        pytest.skip("compiled on GPUs only")
    test_every_kind_of_file_computes_what_the_module_does(client, model, rows)


def test_batches_of_several_clients_get_their_own_rows(client) -> None:
    arrays = [np.full((1, *IMAGE), value, np.float32) for value in range(20)]
    for model in ("script", "exported"):
        answers = [ask(client, model, array, name="x", output="y")[0] for array in arrays]
        assert not wait(answers, timeout=60).not_done
        for array, answer in zip(arrays, answers, strict=True):
            expected = models.Convolution()(torch.from_numpy(array)).detach().numpy()
            np.testing.assert_allclose(answer.result(), expected, rtol=0, atol=2e-2)


LEFT, RIGHT = np.array([[5, 6, 7, 8]], np.float32), np.array([[1, 2, 3, 4]], np.float32)


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("arguments", {"right": RIGHT, "left": LEFT}, {"difference": LEFT - RIGHT, "sum": LEFT + RIGHT}),
        ("positions", {"I__0": LEFT, "I__1": RIGHT}, {"O__0": LEFT - RIGHT, "O__1": LEFT + RIGHT}),
        ("second", {"left": LEFT, "right": RIGHT}, {"O__1": LEFT + RIGHT}),
        ("order", {"a": LEFT, "b": RIGHT}, {"c": LEFT - RIGHT, "d": LEFT + RIGHT}),
        ("named", {"left": LEFT, "right": RIGHT}, {"sum": LEFT + RIGHT, "difference": LEFT - RIGHT}),
    ],
)
def test_names_mean_what_triton_says(client, model: str, inputs, outputs) -> None:
    result = asked(client, model, inputs)
    for name, expected in outputs.items():
        np.testing.assert_array_equal(result.as_numpy(name), expected)


def test_what_is_wrong_with_a_model_is_said(client, kind: str) -> None:
    reasons = {row.name: row.reason for row in client.get_model_repository_index().models}
    assert "parameter 'cuda_graphs' of model 'typo': expected true or false, got 'ture'" in reasons["typo"]
    if kind == "KIND_GPU":
        assert "expected sizes from 1 to max_batch_size 8, such as '1,8', got '1,9'" in reasons["sizes"]
    if kind == "KIND_GPU":  # it is captured when it loads; on the CPU the first request tells
        assert "returns no 'product', but ['difference', 'sum']" in reasons["lacking"]
    else:
        with pytest.raises(Exception, match="returns no 'product', but"):
            asked(client, "lacking", {"left": LEFT, "right": RIGHT})
