"""Every decision of a run, drawn from the seed or replayed. Each belongs to a step, so that a schedule without some of its steps
decides as before in the others."""

from __future__ import annotations

import random
from collections.abc import Mapping

Key = tuple[int, int]  # step, and the number of the decision in it


class Choices:
    """Decisions: 0 means that nothing special happens.

    Args:
        given: what to replay: all decisions that are not 0; None: draw.
    """

    def __init__(self, seed: int, given: Mapping[Key, int] | None = None) -> None:
        self.seed = seed
        self.made: dict[Key, int] = {}
        self._given = given
        self._step, self._count = 0, 0
        self._chance = random.Random(seed)

    def begin(self, step: int) -> None:
        """The decisions from here on belong to `step`."""
        self._step, self._count = step, 0
        self._chance = random.Random(f"{self.seed}/{step}")

    def pick(self, probability: float, options: int = 1) -> int:
        """0, or with the probability one of `1..options`."""
        self._count += 1
        key = (self._step, self._count)
        if self._given is not None:
            value = min(self._given.get(key, 0), options)
        elif options > 0 and self._chance.random() < probability:
            value = self._chance.randint(1, options)
        else:
            value = 0
        if value:
            self.made[key] = value
        return value
