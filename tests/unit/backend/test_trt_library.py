"""The double of TensorRT beside the real libraries: recorded ones always, installed ones where there are."""

from __future__ import annotations

import importlib.util
import inspect
import json
from enum import Enum
from types import SimpleNamespace

import pytest

from headrace.backend.trt_engine import explain
from headrace.backend.trt_plan import Library, PlanHeader
from headrace.backend.trt_slot import make_allocator
from tests.models_tensorrt import DOUBLE
from tests.real_tensorrt import PYTHON, REASON, run

RECORDED = ("tensorrt_rtx", "tensorrt_lean_bindings")
CLASSES = ("Runtime", "ICudaEngine", "IExecutionContext", "ILogger", "IOutputAllocator")

needs_tensorrt = pytest.mark.skipif(not PYTHON.exists(), reason=REASON)


@pytest.fixture
def double():
    spec = importlib.util.spec_from_file_location("double", DOUBLE / "tensorrt.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded(library: str) -> dict:
    return json.loads((DOUBLE / f"{library}.json").read_text())


@pytest.mark.parametrize("library", RECORDED)
@pytest.mark.parametrize("name", CLASSES)
def test_the_double_has_nothing_that_the_library_has_not(double, library: str, name: str) -> None:
    real = recorded(library)["classes"][name]
    members = {key: value for key, value in vars(getattr(double, name)).items() if key[0] != "_" and key != "Severity"}
    for key, value in members.items():
        arguments = list(inspect.signature(value).parameters)[1:]
        assert arguments in real[key], f"{name}.{key}"
    source = inspect.getsource(getattr(double, name).__init__)
    properties = [key for key in real if f"self.{key} =" in source]
    assert all(real[key] == "property" for key in properties)
    made = {word.removeprefix("self.") for word in source.split() if word.startswith("self.") and word[5] != "_"}
    assert made - {"made"} == set(properties)


@pytest.mark.parametrize("library", RECORDED)
def test_enumerations(double, library: str) -> None:
    for name, members in recorded(library)["enums"].items():
        ours = double.ILogger.Severity if name == "ILogger.Severity" else getattr(double, name)
        assert issubclass(ours, Enum)
        assert set(ours.__members__) <= set(members)


def test_only_tensorrt_for_rtx_says_whether_it_can_be_captured(double) -> None:
    has = ["is_stream_capturable" in recorded(library)["classes"]["IExecutionContext"] for library in RECORDED]
    assert has == [True, False]
    real = recorded("tensorrt_rtx")["classes"]["IExecutionContext"]["is_stream_capturable"]
    assert list(inspect.signature(double._CompilingContext.is_stream_capturable).parameters)[1:] in real


@pytest.mark.parametrize("library", RECORDED)
def test_our_allocator_is_called_as_the_library_calls_it(double, library: str) -> None:
    allocator = make_allocator(double, SimpleNamespace())
    for name, arguments in recorded(library)["allocator"].items():
        assert list(inspect.signature(getattr(allocator, name)).parameters) == arguments


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("expecting compute 8.6 got compute 7.5, please rebuild.", "of compute capability 7.5; this one has 8.6"),
        ("The engine cannot run on this GPU, which has compute capability 9.0. Supported", "this one has compute"),
        ("Expected compute capability >= 8.0 but got compute capability = 7.5", "was built for another GPU"),
        ("expecting library version 10.9.0.34 got 10.3.0.26, please rebuild.", "this is a plan of TensorRT 10.3.0.26"),
        ("TensorRT plan major version does not match runtime major version.", "and 11.4 is installed"),
        ("Serialization assertion plan.header.size == blobSize failed.", "cut short, or damaged"),
        ("Size specified in header does not match archive size", "cut short, or damaged"),
        ("Engine plan blob size mismatches the size encoded in the plan header.", "cut short, or damaged"),
        ("Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed.", "is no plan of TensorRT"),
        ("Platform specific tag mismatch detected.", "another operating system or processor"),
        ("createInferRuntime: CUDA initialization failure with error: 35", "cannot reach a GPU"),
        ("something new", "cannot be opened by TensorRT 11.4 (something new)"),
    ],
)
def test_what_the_library_says_in_words(text: str, words: str) -> None:
    told = explain(PlanHeader(Library.TENSORRT, "10.3.0.26"), "11.4", [text])
    assert words in told
    assert text in told


@needs_tensorrt
@pytest.mark.parametrize("library", RECORDED)
def test_the_record_is_of_the_library(library: str) -> None:
    assert json.loads(run(DOUBLE / "record.py", library)) == recorded(library)


@needs_tensorrt
def test_the_real_runtime_without_a_gpu_is_an_error_and_no_crash() -> None:
    told = run("tests/real_tensorrt.py", "lean")
    assert "TensorRT 11.4.0.106 cannot start, it needs a GPU and its driver" in told or "Runtime object" in told
