"""Which shape an output will have, learned from the shapes that it had for inputs of the same shapes. Pure.

An output is placed before the model runs, so its shape must be guessed where the model does not tell. A wrong
guess costs one more run. After each the next guess needs twice as many results of one shape in a row, unless
many guesses had been right: an output whose shape depends on values is soon left alone, and odd requests spoil
nothing for good.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.tensor import Shape

_MOST_INPUTS = 256
_MOST_NEEDED = 1 << 16
_MANY = 32
"""Right guesses that pay for a wrong one."""
_AFTER_MANY = 2

Inputs = tuple[Shape, ...]
"""The shapes of all inputs of a batch."""


@dataclass
class _Seen:
    shape: Shape
    streak: int = 1
    """Results of this shape in a row."""
    needed: int = 1
    """So many are trusted."""
    guesses: int = 0
    """Made since the last one that was wrong."""

    def guess(self) -> Shape | None:
        if self.streak < self.needed:
            return None
        self.guesses += 1
        return self.shape

    def saw(self, shape: Shape, guessed: Shape | None) -> None:
        if guessed is not None and guessed != shape:
            self.needed = _AFTER_MANY if self.guesses > _MANY else min(self.needed * 2, _MOST_NEEDED)
            self.guesses = 0
        self.streak = self.streak + 1 if shape == self.shape else 1
        self.shape = shape


class ShapeMemory:
    """Shapes of the outputs of one instance, by the shapes of its inputs."""

    def __init__(self) -> None:
        self._seen: dict[Inputs, dict[int, _Seen]] = {}

    def guess(self, inputs: Inputs, output: int, told: Shape | None) -> Shape | None:
        """The shape of an output; `None` when it is better not guessed.

        Args:
            inputs: shapes of the inputs.
            output: its position.
            told: what the model says, which holds until results say otherwise.
        """
        seen = self._seen.get(inputs, {}).get(output)
        if seen is None:
            return told
        return seen.guess()

    def learn(self, inputs: Inputs, output: int, shape: Shape, guessed: Shape | None) -> None:
        """Takes a result in.

        Args:
            inputs: shapes of the inputs.
            output: its position.
            shape: what it turned out to be.
            guessed: what it was thought to be when the model ran; `None` when nothing was.
        """
        if inputs not in self._seen and len(self._seen) >= _MOST_INPUTS:
            self._seen.pop(next(iter(self._seen)))
        outputs = self._seen.setdefault(inputs, {})
        if output not in outputs and guessed is None:
            outputs[output] = _Seen(shape)
            return
        seen = outputs.setdefault(output, _Seen(shape if guessed is None else guessed))
        seen.saw(shape, guessed)
