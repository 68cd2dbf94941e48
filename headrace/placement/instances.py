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
    device: int | None
    """The GPU it runs on; `None`: the CPU."""


def plan_instances(spec: ModelSpec, cores: int) -> list[InstancePlan]:
    """The instances of a model: `count` of each group, and of a GPU group on each of its GPUs.

    Instances on the CPU share the cores, so that they do not fight for them; each has one at least.
    """
    places: list[tuple[str, int | None]] = []
    for group in spec.message.instance_group:
        devices: list[int | None] = list(group.gpus) or [None]
        names = range(group.count * len(devices))
        places += [(f"{group.name}_{number}", devices[number // group.count]) for number in names]
    threads = max(1, cores // max(1, len(places)))
    return [InstancePlan(name, threads, device) for name, device in places]
