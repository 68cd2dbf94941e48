"""Optimization profiles: which one computes a batch. Pure.

A plan is built for ranges of input shapes, its profiles, each with the shape that it was tuned for. Of those that take
a batch Triton chooses the one tuned for the nearest shape, and so does this; of several the tightest, then the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape


@dataclass(frozen=True)
class Range:
    """What a profile takes of an input: a shape or, of an input whose values are shapes, values."""

    smallest: Shape
    tuned: Shape
    largest: Shape

    def takes(self, given: Shape) -> bool:
        """Whether it is within."""
        return len(given) == len(self.smallest) and all(
            low <= extent <= high for low, extent, high in zip(self.smallest, given, self.largest, strict=True)
        )

    def __str__(self) -> str:
        if self.smallest == self.largest:
            return str(list(self.smallest))
        return f"{list(self.smallest)} to {list(self.largest)}, tuned for {list(self.tuned)}"


Given = Mapping[str, Shape]
"""By the names of inputs."""


@dataclass(frozen=True)
class Profile:
    """An optimization profile of a plan."""

    index: int
    shapes: Mapping[str, Range]
    """Of every input."""
    values: Mapping[str, Range]
    """Of the inputs whose values are shapes."""

    def takes(self, shapes: Given, values: Given) -> bool:
        """Whether all inputs are within."""
        return all(self.shapes[name].takes(shape) for name, shape in shapes.items()) and all(
            self.values[name].takes(value) for name, value in values.items()
        )

    def distance(self, shapes: Given, values: Given) -> int:
        """From what it was tuned for: the sum of the differences of all extents."""
        pairs = [(self.shapes[name].tuned, shape) for name, shape in shapes.items()]
        pairs += [(self.values[name].tuned, value) for name, value in values.items()]
        return sum(abs(ours - theirs) for tuned, given in pairs for ours, theirs in zip(tuned, given, strict=True))

    @property
    def most_elements(self) -> int:
        """Elements of the largest inputs."""
        return sum(math.prod(range_.largest) for range_ in self.shapes.values())

    @property
    def most_rows(self) -> int:
        """Rows of the largest batch; 0 where an input has no dimensions."""
        return min((range_.largest[0] if range_.largest else 0 for range_ in self.shapes.values()), default=0)

    @property
    def least_rows(self) -> int:
        """Rows of the smallest batch."""
        return max((range_.smallest[0] if range_.smallest else 0 for range_ in self.shapes.values()), default=0)

    def __str__(self) -> str:
        parts = [f"{name} {range_}" for name, range_ in self.shapes.items()]
        parts += [f"values of {name} {range_}" for name, range_ in self.values.items()]
        return f"profile {self.index} takes {'; '.join(parts)}"


def choose_profile(profiles: Sequence[Profile], shapes: Given, values: Given) -> Profile:
    """The profile for inputs of these shapes and values.

    Raises:
        ConfigError: when none takes them, naming all.
    """
    fitting = [profile for profile in profiles if profile.takes(shapes, values)]
    if not fitting:
        came = [f"{name} {list(shape)}" for name, shape in shapes.items()]
        came += [f"values of {name} {list(value)}" for name, value in values.items()]
        known = ". ".join(str(profile) for profile in profiles)
        raise ConfigError(f"no optimization profile takes {'; '.join(came)}. {known}")
    return min(fitting, key=lambda one: (one.distance(shapes, values), one.most_elements, one.index))


def choose_rows(
    profiles: Sequence[Profile], shapes: Given, sizes: Sequence[int], always: bool
) -> tuple[Profile, dict[str, Shape]]:
    """The profile for a batch, and the shapes that it is computed with: more rows than it has where that is needed.

    Args:
        profiles: to choose from.
        shapes: of the inputs; rows come first.
        sizes: numbers of rows that a batch may be computed with, ascending.
        always: use the next of `sizes` also where the profile would take the batch as it is.

    Raises:
        ConfigError: when no profile takes it, not with more rows either.
    """
    rows = next(iter(shapes.values()))[0]
    larger = [{name: (size, *shape[1:]) for name, shape in shapes.items()} for size in sizes if size >= rows]
    try:
        profile = choose_profile(profiles, shapes, {})
    except ConfigError:
        for padded in larger:
            if any(one.takes(padded, {}) for one in profiles):
                return choose_profile(profiles, padded, {}), padded
        raise
    if always:
        shapes = next((padded for padded in larger if profile.takes(padded, {})), shapes)
    return profile, dict(shapes)
