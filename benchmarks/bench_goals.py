# SPDX-License-Identifier: Apache-2.0
"""What a measure is, and what a goal is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.bench_contenders import BASELINE, HEAP_PEER, OURS
from benchmarks.bench_extracts import Extract


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A goal of Millpond.

    `met` takes the medians by contender and the number of keys. It returns None if a peer is
    missing.
    """

    text: str
    met: Callable[[Mapping[str, float], int], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One row of the table.

    Attributes:
        extract: takes the raw result of one process, and returns the figure; None if that process
            does not measure it.
        higher_is_better: it is a rate, not a cost.
        compare: a ratio between contenders means something.
        chart: the chart shows it.
        ours: the table shows the ratios of this contender to the peers.
        only: the contenders that have it; empty: all.
    """

    name: str
    title: str
    unit: str
    level: str
    extract: Extract
    higher_is_better: bool = False
    compare: bool = True
    chart: bool = True
    goal: Goal | None = None
    ours: str = OURS
    only: tuple[str, ...] = ()

    def ratio(self, values: Mapping[str, float], mine: str, peer: str) -> float | None:
        """Return how many times better `mine` is than `peer`.

        None if one of them has no figure above zero. A difference of two readings, such as resident
        memory, may be zero or less if noise outweighs it.
        """
        a, b = values.get(mine), values.get(peer)
        if not self.compare or a is None or b is None or a <= 0 or b <= 0:
            return None
        return a / b if self.higher_is_better else b / a


def faster(
    baseline: float, heap: float | None = None, *, rate: bool = False, ours: str = OURS
) -> Goal:
    def met(values: Mapping[str, float], _keys: int) -> bool | None:
        wanted = {BASELINE: baseline} | ({HEAP_PEER: heap} if heap is not None else {})
        if ours not in values or any(peer not in values for peer in wanted):
            return None
        mine = values[ours]
        return all(
            (mine / values[p] if rate else values[p] / mine) >= factor
            for p, factor in wanted.items()
        )

    return Goal(text=f"{baseline:g}x" + (f", {heap:g}x heap" if heap is not None else ""), met=met)


def at_most(bound: float, text: str) -> Goal:
    return Goal(
        text=text, met=lambda values, _keys: values[OURS] <= bound if OURS in values else None
    )


def at_least(bound: float, text: str) -> Goal:
    return Goal(
        text=text, met=lambda values, _keys: values[OURS] >= bound if OURS in values else None
    )
