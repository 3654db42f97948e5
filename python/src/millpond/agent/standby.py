"""Which executor follows which store of another one, to take it over when that one is lost.

Pure: the driver tells what runs where, and who follows it.
Source: docs/guides/standby.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from millpond.agent.balance import Executor, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """An executor follows a unit, by its number in the list."""

    unit: int
    target: str


def plan_followers(units: Sequence[Unit], executors: Sequence[Executor]) -> list[Follower]:
    """Return who follows which unit, in the order of the units; some may have nobody.

    A follower stays while it lives, and does not run the unit itself. A new one has
    a unit of the same group itself: from that it knows how to open the store. It is on another host
    if there is one: a host may be lost as a whole. Of those, the one that follows fewest units of
    the same executor: when that is lost, all others share its work.
    """
    by_id = {e.id: e for e in executors}
    has = {(unit.executor, unit.group) for unit in units}
    of_source: Counter[tuple[str, str]] = Counter()
    of_group: Counter[tuple[str, str]] = Counter()
    followed: Counter[str] = Counter()
    chosen: dict[int, str] = {}

    def follow(n: int, executor: str) -> None:
        chosen[n] = executor
        of_source[units[n].executor, executor] += 1
        of_group[units[n].group, executor] += 1
        followed[executor] += 1

    for n, unit in enumerate(units):
        now = by_id.get(unit.standby)
        if now is not None and unit.standby != unit.executor:
            follow(n, now.id)
    for n, unit in enumerate(units):
        others = [e for e in executors if e.id != unit.executor and (e.id, unit.group) in has]
        if n in chosen or unit.executor not in by_id or not others:
            continue
        host = by_id[unit.executor].host

        def rank(e: Executor, unit: Unit = unit, host: str = host) -> tuple[bool, float, str]:
            counts = (of_source[unit.executor, e.id], of_group[unit.group, e.id], followed[e.id])
            return (
                e.host == host,
                sum(c * w for c, w in zip(counts, (1.0, 0.01, 0.0001), strict=True)) / e.cores,
                e.id,
            )

        follow(n, min(others, key=rank).id)
    return [Follower(unit=n, target=chosen[n]) for n in sorted(chosen)]
