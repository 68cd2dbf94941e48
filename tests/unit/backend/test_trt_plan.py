"""What the bytes of plans tell: of real ones of TensorRT for RTX, and of TensorRT's as far as its headers are known."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from headrace.backend.trt_plan import Library, PlanHeader, read_header
from headrace.core.errors import ConfigError
from tests import models_tensorrt as models
from tests.real_tensorrt import PYTHON, REASON, run

DETECTOR = Path(os.environ.get("HEADRACE_SHARED", "../shared")) / "data" / "detector_fp16.onnx"
TENSORRT = models.plan(models.affine(models.rows(1, 2, 4)))

needs_tensorrt = pytest.mark.skipif(not PYTHON.exists(), reason=REASON)


def test_whose_plan_it_is() -> None:
    assert read_header(models.rtx_plan()) == PlanHeader(Library.RTX, "1.7.1.116")
    assert read_header(TENSORRT) == PlanHeader(Library.TENSORRT, "10.9.0.34")


def test_metadata_before_the_plan_is_skipped() -> None:
    text = json.dumps({"description": "a detector", "names": {0: "person"}}).encode()
    before = len(text).to_bytes(4, "little") + text
    assert read_header(before + TENSORRT) == PlanHeader(Library.TENSORRT, "10.9.0.34", len(before))
    assert read_header(before + models.rtx_plan()).offset == len(before)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is no TensorRT plan: it begins with b''"),
        (b"\x08\x08\x12\x07pytorch", "the file is no TensorRT plan"),
        (b"\x10\0\0\0{not json at all", "the file is no TensorRT plan"),
        (b"ptrt" + bytes(100), "built by a TensorRT before 8.6"),
        (b"ftrt", "cut short: the file has 4 bytes, a header alone 28"),
        (models.rtx_plan()[:-1], "cut short: its header tells 141004 bytes, the file has 141003"),
        (models.rtx_plan() + b"\n", "followed by other bytes: its header tells 141004 bytes, the file has 141005"),
    ],
)
def test_what_is_no_whole_plan(data: bytes, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_header(data)
    assert words in str(raised.value)


@given(st.binary(max_size=200), st.sampled_from([b"", b"ftrt", b"vtrt", b"\x05\0\0\0{"]))
def test_any_bytes_are_a_header_or_an_error(data: bytes, start: bytes) -> None:
    with suppress(ConfigError):
        assert read_header(start + data).version.count(".") == 3


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    """Of `Relu`, with 1 to 8 rows."""
    folder = tmp_path_factory.mktemp("plan")
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", sides[:1], sides[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    run("tests/real_tensorrt.py", "build", folder / "model.onnx", folder / "model.plan", "x=1x4:4x4:8x4")
    return folder / "model.plan"


@needs_tensorrt
def test_a_real_plan(plan: Path) -> None:
    data = plan.read_bytes()
    assert read_header(data) == PlanHeader(Library.RTX, "1.7.1.116")
    assert data[:64] == models.RTX_HEAD
    for length in {*range(200), *range(200, len(data), 1009), len(data) - 1}:
        with pytest.raises(ConfigError, match=r"cut short|is no TensorRT plan"):
            read_header(data[:length])


@needs_tensorrt
def test_a_real_plan_where_there_is_no_gpu_is_an_error_and_no_crash(plan: Path) -> None:
    told = run("tests/real_tensorrt.py", "load", plan)
    assert "TensorRT for RTX cannot reach a GPU" in told or "ModelSignature" in told or "compute capability" in told


@needs_tensorrt
@pytest.mark.skipif(not DETECTOR.exists(), reason=f"there is no {DETECTOR}")
def test_a_real_detector(tmp_path) -> None:
    plan = tmp_path / "model.plan"
    shapes = ":".join(f"{count}x3x384x640" for count in (1, 8, 32))
    run("tests/real_tensorrt.py", "build", DETECTOR, plan, f"images={shapes}")
    assert read_header(plan.read_bytes()) == PlanHeader(Library.RTX, "1.7.1.116")
    plan.write_bytes(plan.read_bytes()[:-1000])
    assert "the plan is cut short: its header tells" in run("tests/real_tensorrt.py", "load", plan)
