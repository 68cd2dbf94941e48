"""Instances and their share of the cores."""

from __future__ import annotations

import pytest

from headrace.config.model import model_spec
from headrace.core.messages import ModelConfig, parse_text
from headrace.placement.instances import plan_instances


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 1), (16, 5)])
def test_cores_are_divided(cores: int, threads: int) -> None:
    config = ModelConfig()
    parse_text('name: "m" instance_group [{ name: "a" count: 1 }, { name: "b" count: 2 }]', config)
    plans = plan_instances(model_spec(config), cores)
    assert [plan.name for plan in plans] == ["a_0", "b_0", "b_1"]
    assert {plan.threads for plan in plans} == {threads}
