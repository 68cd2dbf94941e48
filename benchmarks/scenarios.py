"""What is measured, against whom, and what is to be reached. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contestant:
    """A model of one of the two servers."""

    server: str
    """"headrace", "crowded" (Headrace with many models and regions) or "triton"."""
    model: str
    label: str
    """Names the backend: no ratio to Triton is told without it."""


@dataclass(frozen=True)
class Target:
    """A ratio of two contestants' figures."""

    of: str
    """Label of a contestant of Headrace."""
    against: str
    """Label of the contestant that it is compared with."""
    figure: str
    """"throughput", "cpu_us" or "p50_us"."""
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Scenario:
    """One load."""

    name: str
    title: str
    concurrency: int
    contestants: tuple[Contestant, ...]
    targets: tuple[Target, ...]
    options: tuple[str, ...] = ()
    """Of perf_analyzer."""
    bytes_in: int = 64
    bytes_out: int = 64
    """Tensor bytes of a request."""
    protocol: str = "Grpc"
    """`Grpc` or `Http`, as perf_analyzer spells them."""
    client: str = "perf_analyzer"
    """Or `light`: `benchmarks/light.py`, where perf_analyzer itself would be what is measured."""
    json: bool = False
    """Tensors as JSON, over HTTP."""
    question: str = "FP32[16]"
    """What is asked once before it is timed: a key of `benchmarks.answers.QUESTIONS`."""
    copies: int | None = None
    """Copies of each tensor byte by Headrace's transfer that are to be seen; `None`: not looked at."""

    @property
    def shared(self) -> bool:
        """Whether tensors go through system shared memory."""
        return "--shared-memory" in self.options


PYTHON = "Triton, Python backend"
C = "Triton, C backend"
IDENTITY = "Headrace, identity"
ONNX = "Headrace, ONNX Runtime"
ECHOES = (
    Contestant("headrace", "echo", IDENTITY),
    Contestant("headrace", "echo_onnx", ONNX),
    Contestant("triton", "echo_python", PYTHON),
    Contestant("triton", "echo_c", C),
)
SHARED = ("--shared-memory", "system", "--output-shared-memory-size", "846720")
IMAGE, DETECTIONS = 2 * 3 * 384 * 640, 2 * 84 * 5040


CROWDED = "Headrace, identity, beside 200 models and 1,000 regions"


def _echo(model: str) -> tuple[Contestant, ...]:
    return (Contestant("headrace", model, IDENTITY), Contestant("triton", model, PYTHON))


def _slice(model: str) -> tuple[Contestant, ...]:
    return (Contestant("headrace", model, ONNX), Contestant("triton", model, PYTHON))


SCENARIOS = (
    Scenario(
        name="echo_16",
        title="FP32[16] echo, 16 requests in flight",
        concurrency=16,
        contestants=ECHOES,
        targets=(
            Target(IDENTITY, PYTHON, "throughput", at_least=2.2),
            Target(IDENTITY, PYTHON, "cpu_us", at_most=0.40),
            Target(IDENTITY, C, "throughput", at_least=1.2),
            Target(IDENTITY, C, "cpu_us", at_most=0.65),
            Target(ONNX, PYTHON, "throughput", at_least=1.7),
            Target(ONNX, PYTHON, "cpu_us", at_most=0.55),
        ),
    ),
    Scenario(
        name="echo_1",
        title="FP32[16] echo, one request in flight",
        concurrency=1,
        contestants=ECHOES,
        targets=(Target(IDENTITY, PYTHON, "p50_us", at_most=0.6),),
    ),
    Scenario(
        name="report_alone",
        title="The founding report's tensors through system shared memory, 64 in flight, `max_batch_size: 0`",
        concurrency=64,
        contestants=_slice("slice_alone"),
        targets=(
            Target(ONNX, PYTHON, "throughput", at_least=3.0),
            Target(ONNX, PYTHON, "cpu_us", at_most=0.35),
        ),
        options=(*SHARED, "--shape", "images:1,3,384,640"),
        bytes_in=IMAGE,
        bytes_out=DETECTIONS,
        copies=0,
    ),
    Scenario(
        name="report_batched",
        title="The same, `max_batch_size: 32`, dynamic batching",
        concurrency=64,
        contestants=_slice("slice_batched"),
        targets=(
            Target(ONNX, PYTHON, "throughput", at_least=2.0),
            Target(ONNX, PYTHON, "cpu_us", at_most=0.6),
        ),
        options=(*SHARED, "--shape", "images:3,384,640"),
        bytes_in=IMAGE,
        bytes_out=DETECTIONS,
        copies=1,
    ),
    Scenario(
        name="megabyte_grpc",
        title="FP32[262144] (1 MiB) echo in the message, gRPC, 16 in flight",
        concurrency=16,
        contestants=_echo("megabyte"),
        targets=(Target(IDENTITY, PYTHON, "throughput", at_least=1.5),),
        bytes_in=1 << 20,
        bytes_out=1 << 20,
        client="light",
        question="FP32[262144]",
    ),
    Scenario(
        name="megabyte_http",
        title="The same over HTTP, binary",
        concurrency=16,
        contestants=_echo("megabyte"),
        targets=(Target(IDENTITY, PYTHON, "throughput", at_least=1.5),),
        bytes_in=1 << 20,
        bytes_out=1 << 20,
        protocol="Http",
        client="light",
        question="FP32[262144]",
    ),
    Scenario(
        name="json",
        title="FP32[1500] (about 16 KB of JSON) echo over HTTP, JSON both ways, 16 in flight",
        concurrency=16,
        contestants=_echo("numbers"),
        targets=(Target(IDENTITY, PYTHON, "throughput", at_least=2.0),),
        client="light",
        json=True,
        bytes_in=6000,
        bytes_out=6000,
        protocol="Http",
        question="FP32[1500]",
    ),
    Scenario(
        name="strings",
        title="BYTES[1000] of 20 characters echo, gRPC, 16 in flight",
        concurrency=16,
        contestants=_echo("strings"),
        targets=(Target(IDENTITY, PYTHON, "throughput", at_least=2.0),),
        options=("--string-length", "20"),
        bytes_in=24_000,
        bytes_out=24_000,
        question="BYTES[1000]",
    ),
    Scenario(
        name="crowd",
        title="FP32[16] echo, 16 in flight, beside 200 other models and 1,000 registered regions",
        concurrency=16,
        contestants=(Contestant("headrace", "echo", IDENTITY), Contestant("crowded", "echo", CROWDED)),
        targets=(
            Target(CROWDED, IDENTITY, "throughput", at_least=0.9),
            Target(CROWDED, IDENTITY, "cpu_us", at_most=1.1),
        ),
    ),
)
