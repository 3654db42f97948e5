"""Finds which operator of a job goes on with the state of which operator of a savepoint (pure).

Spark numbers the operators of a plan, and finds their state by number. A new or a dropped operator
changes the numbers of others. So this compares names and columns, from the strictest way of being
alike to the loosest. Of several that are as alike it chooses only where there are as many on both
sides, with the same columns: then they stay in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millpond.operations.savepoint.operator_shapes import OperatorShape

GIVEN = "--map-operator"
SAME, SAME_IN_ORDER = "same columns", "same columns, in their order"

# The loosest last. Each compares operators of one name.
_WAYS: tuple[tuple[str, Callable[[OperatorShape], object]], ...] = (
    (SAME, OperatorShape.exact),
    ("same key, other values", OperatorShape.key),
    ("same types, other names", OperatorShape.types),
    ("the only one of its name", lambda shape: None),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The job's operator `job` goes on with the state of the savepoint's `saved`."""

    saved: int
    job: int
    why: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """Operators that are alike, and of which nothing says which is which."""

    name: str
    saved: tuple[int, ...]
    job: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{self.name} {_numbers(self.saved)} of the savepoint may be {_numbers(self.job)} of"
            f" the job: say which with --map-operator {self.saved[0]}=NEW"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Who goes on with whose state."""

    pairs: tuple[Pair, ...]
    unclear: tuple[Unclear, ...]

    @property
    def numbers(self) -> dict[int, int]:
        """Number in the savepoint -> number in the job."""
        return {pair.saved: pair.job for pair in self.pairs}


def matching(
    saved: Mapping[int, OperatorShape],
    job: Mapping[int, OperatorShape],
    given: Mapping[int, int],
) -> Matching:
    """Return which operator of the job goes on with which state.

    Args:
        saved: operators of the savepoint, without those that the user drops.
        job: operators of the job.
        given: what the user says: number in the savepoint -> number in the job.
    """
    pairs = [Pair(old, new, GIVEN) for old, new in given.items()]
    unclear: list[Unclear] = []
    left = {old: shape for old, shape in saved.items() if old not in given}
    wanting = {new: shape for new, shape in job.items() if new not in given.values()}
    for why, alike in _WAYS:
        groups = _grouped(left, alike)
        for of, news in _grouped(wanting, alike).items():
            olds = groups.get(of)
            if olds is None:
                continue
            if len(olds) == 1 == len(news):
                pairs.append(Pair(olds[0], news[0], why))
            elif len(olds) == len(news) and why == SAME:
                pairs += [
                    Pair(old, new, SAME_IN_ORDER) for old, new in zip(olds, news, strict=True)
                ]
            else:
                unclear.append(Unclear(of[0], tuple(olds), tuple(news)))
            for old in olds:
                del left[old]
            for new in news:
                del wanting[new]
    return Matching(pairs=tuple(sorted(pairs, key=lambda p: p.job)), unclear=tuple(unclear))


def _grouped(
    operators: Mapping[int, OperatorShape], alike: Callable[[OperatorShape], object]
) -> dict[tuple[str, object], list[int]]:
    groups: dict[tuple[str, object], list[int]] = {}
    for number, shape in sorted(operators.items()):
        groups.setdefault((shape.name, alike(shape)), []).append(number)
    return groups


def _numbers(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))
