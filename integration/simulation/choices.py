"""Every decision of a run, drawn from the seed or replayed.

Each decision belongs to a step. If a schedule loses some steps, the decisions of the others stay
the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

Key = tuple[int, int]  # the step, and the number of the decision in it; below 0: at a seam
NEVER = 1 << 60


class Choices:
    """Decisions. 0 means that nothing special happens.

    Args:
        given: the decisions to replay, all that are not 0; None: draw them.
        often: the highest probabilities at a seam: that another thread goes first, and that
            something goes wrong.
    """

    def __init__(
        self,
        seed: int,
        given: Mapping[Key, int] | None = None,
        often: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.seed = seed
        self.made: dict[Key, int] = {}
        self.given = given
        self.step = 0
        self._count = 0
        self._chance = random.Random(seed)
        self.yielding, self.failing = (Seams(self, kind, share) for kind, share in enumerate(often))

    def begin(self, step: int) -> None:
        """Begin `step`: the next decisions belong to it."""
        self.step, self._count = step, 0
        self._chance = random.Random(f"{self.seed}/{step}")
        self.yielding.begin()
        self.failing.begin()

    def pick(self, probability: float, options: int = 1) -> int:
        """Return 0, or with `probability` one of `1..options`."""
        self._count += 1
        key = (self.step, self._count)
        if self.given is not None:
            value = min(self.given.get(key, 0), options)
        elif options > 0 and self._chance.random() < probability:
            value = self._chance.randint(1, options)
        else:
            value = 0
        if value:
            self.made[key] = value
        return value


class Seams:
    """The seams of a step at which one kind of thing may happen.

    The class draws in advance how many seams the JVM passes without a question. A question at each
    seam would cost more time than the rest of the simulation.

    Args:
        kind: 0 or 1.
        often: the highest probability that it happens at a seam.
    """

    def __init__(self, choices: Choices, kind: int, often: float) -> None:
        self._choices, self._kind, self._often = choices, kind, often
        self.begin()

    def begin(self) -> None:
        """Begin a new step."""
        step, given = self._choices.step, self._choices.given
        self._passed = 0
        self._next = 0  # the seam at which the JVM asks next
        self._chance = random.Random(f"{self._choices.seed}/{step}/{self._kind}")
        numbers = (-n // 2 for s, n in given or () if s == step and n < 0 and -n % 2 == self._kind)
        self._given = None if given is None else [*sorted(numbers), NEVER]

    def passed(self, count: int) -> None:
        """Note that the JVM passed `count` seams without asking."""
        self._passed += count

    def skip(self) -> int:
        """Return how many seams the JVM passes before it asks at one."""
        while self._next <= self._passed:
            self._next = self._next + self._gap() if self._given is None else self._given.pop(0)
        return self._next - self._passed - 1

    def _gap(self) -> int:
        if self._often <= 0:
            return NEVER
        return 1 + int(math.log(1 - self._chance.random()) / math.log(1 - min(self._often, 0.999)))

    def pick(self, probability: float, options: int) -> int:
        """Decide at the seam that asks: return 0, or with `probability` one of `1..options`."""
        self._passed += 1
        key = (self._choices.step, -(2 * self._passed + self._kind))
        if self._choices.given is not None:
            value = min(self._choices.given.get(key, 0), options)
        elif options > 0 and self._chance.random() * self._often < probability:
            value = self._chance.randint(1, options)
        else:
            value = 0
        if value:
            self._choices.made[key] = value
        return value
