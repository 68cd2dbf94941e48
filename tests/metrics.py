"""Reading the metrics page."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.servers import RunningServer


def metrics_text(server: RunningServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30) as response:
        return response.read().decode()


def read_metric(server: RunningServer, name: str, /, **labels: str) -> float:
    """Sum of the samples of that name and these labels. The parser gives every counter the suffix `_total`."""
    name = name.removesuffix("_total")
    samples = (sample for family in text_string_to_metric_families(metrics_text(server)) for sample in family.samples)
    return sum(
        sample.value
        for sample in samples
        if sample.name.removesuffix("_total") == name and labels.items() <= sample.labels.items()
    )
