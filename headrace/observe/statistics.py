"""The statistics extension: the wire's sums as `ModelStatistics`. `docs/statistics.md` says what each number means.

Durations are nanoseconds. *queue* ends when an instance takes the request, *compute_input* when its tensors
are placed, *compute_infer* when the model is done, *compute_output* when the answers are handed to the wire.
Each request of a batch counts the whole batch's stages, as in Triton.
"""

from __future__ import annotations

from typing import Any

from headrace.core.messages import ModelStatistics
from headrace.core.wire import Statistics


def statistics_message(name: str, version: int, sums: Statistics) -> Any:
    """A `ModelStatistics` of one model version."""
    message = ModelStatistics(
        name=name,
        version=str(version),
        last_inference=sums.last_inference,
        inference_count=sums.inferences,
        execution_count=sums.executions,
    )
    spans = message.inference_stats
    for span, (count, ns) in [
        (spans.success, sums.success),
        (spans.fail, sums.fail),
        (spans.queue, sums.queue),
        (spans.compute_input, sums.input),
        (spans.compute_infer, sums.infer),
        (spans.compute_output, sums.output),
        (spans.cache_hit, (0, 0)),
        (spans.cache_miss, (0, 0)),
    ]:
        span.count, span.ns = count, ns
    for rows, *stages in sums.batches:
        batch = message.batch_stats.add(batch_size=rows)
        for span, (count, ns) in zip(
            (batch.compute_input, batch.compute_infer, batch.compute_output), stages, strict=True
        ):
            span.count, span.ns = count, ns
    return message
