"""Instance groups into instances."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.model import ModelSpec


@dataclass(frozen=True)
class InstancePlan:
    """One instance to be started."""

    name: str
    """`<group>_<number>`, as Triton names them."""
    threads: int
    """CPU threads it should use."""


def plan_instances(spec: ModelSpec, cores: int) -> list[InstancePlan]:
    """The instances of a model. Its instances share the cores, so that they do not fight for them; each has
    one at least.
    """
    threads = max(1, cores // max(1, spec.instance_count))
    return [
        InstancePlan(f"{group.name}_{number}", threads)
        for group in spec.message.instance_group
        for number in range(group.count)
    ]
