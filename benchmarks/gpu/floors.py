"""What the GPU and its link do without a server: the engine's own rate, and the copies of the report's tensors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headrace.backend.torch_compiled import CompiledProgram

IMAGE, DETECTIONS, ROWS = 2 * 3 * 384 * 640, 2 * 84 * 5040, 32


def engine_rate(torch: Any, detector: Path, seconds: float = 3.0, compiled: bool = False) -> float:
    """Images per second of the detector in a CUDA graph of 32, inputs and outputs on the device; as TorchScript, or
    compiled by Inductor.
    """
    module = torch.jit.load(str(detector), map_location="cuda").half().eval().to(memory_format=torch.channels_last)
    if compiled:
        module = CompiledProgram(torch, module, is_script=True)
    images = torch.randn(ROWS, 3, 384, 640, dtype=torch.half, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(3):
            module(images.contiguous(memory_format=torch.channels_last))
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            _ = module(images.contiguous(memory_format=torch.channels_last)).contiguous()
        runs, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(10):
                graph.replay()
            stream.synchronize()
            runs += 10
    return runs * ROWS / (time.perf_counter() - began)


def link_rate(torch: Any, rounds: int = 200) -> dict[str, float]:
    """Requests per second that the link carries, in, out and both at once, by batched copies of page-locked memory."""
    from cuda.bindings import runtime

    from headrace.memory.cuda import CudaDevice

    device = CudaDevice(runtime, 0)
    host = torch.zeros(ROWS * (IMAGE + DETECTIONS), dtype=torch.uint8)
    device.lock(host.data_ptr(), host.numel())
    there = torch.zeros(ROWS * (IMAGE + DETECTIONS), dtype=torch.uint8, device="cuda")
    base, target = host.data_ptr(), there.data_ptr()
    copies_in = [(target + row * IMAGE, base + row * IMAGE, IMAGE) for row in range(ROWS)]
    at = ROWS * IMAGE
    copies_out = [(base + at + row * DETECTIONS, target + at + row * DETECTIONS, DETECTIONS) for row in range(ROWS)]
    inward, outward, end = device.stream(), device.stream(), (device.event(), device.event())
    rates = {}
    for name, work in {
        "in": [(inward, copies_in)],
        "out": [(outward, copies_out)],
        "both": [(inward, copies_in), (outward, copies_out)],
    }.items():
        began = time.perf_counter()
        for _ in range(rounds):
            for stream, copies in work:
                device.copy(stream, copies)
        for event, (stream, _) in zip(end, work, strict=False):
            device.record(event, stream)
            device.synchronize(event)
        rates[name] = rounds * ROWS / (time.perf_counter() - began)
    device.unlock(host.data_ptr())
    return rates
