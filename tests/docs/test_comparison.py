"""The page for those who come from Triton is what the tables write, and the tables are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.cli.comparison import fate_of, page
from headrace.config.features import BETTER, FIELDS, METRICS, SAME, Feature, Field
from headrace.control.endpoints import ENDPOINTS, OF_THE_WIRE
from headrace.core.messages import RPCS, ModelConfig


def test_the_page_is_what_the_tables_write() -> None:
    assert Path("docs/coming-from-triton.md").read_text() == page()


@pytest.mark.parametrize("feature", [*SAME, *BETTER], ids=lambda feature: feature.text)
def test_the_proof_is_there(feature: Feature) -> None:
    path, _, name = feature.proof.partition("::")
    assert re.search(rf"^(async )?def {name or 'test_'}", Path(path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_examples_are_good_but_for_what_is_not_served(field: Field) -> None:
    assert fate_of(field)


def test_every_field_of_a_config_is_told() -> None:
    told = {field.name.split(".")[0] for field in FIELDS}
    assert told == {"scheduling_choice" if name is None else name for name in ModelConfig.DESCRIPTOR.fields_by_name}
    names = [field.name for field in FIELDS]
    assert len(names) == len(set(names))


def test_every_rpc_is_told() -> None:
    assert {endpoint.verb for endpoint in ENDPOINTS if endpoint.over_grpc} == set(RPCS)
    assert set(RPCS) >= OF_THE_WIRE


def test_metrics_are_told_once() -> None:
    assert len(METRICS) == len(set(METRICS))
