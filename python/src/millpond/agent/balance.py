"""Which stores of a cluster move to which executor, so that no executor has much more than its
share.

Pure: the driver tells what runs where, and how much it takes. Source: docs/guides/balance.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from millpond.model.json_fields import JsonFields

# An executor with more than this, as a multiple of its share, starts a round of moves; the round
# goes on over later batches until nobody has more than the second. The gap keeps a load that
# changes a little from moving anything.
START = 1.15
END = 1.05
_ROUND_BATCHES = 3  # a round is over if nothing moved for so many batches
# In one batch at most half of what is too much moves, so most of the state stays; or this part of
# all units, so that the last ones do not take a batch each.
_PART_OF_UNITS = 8
# As far as the units of one executor take this many times the usual, the executor is taken for
# slow, not its units for large: a young JVM is slow, and its first tasks say nothing of the units.
_MOST_SLOWNESS = 2.0
# A unit that moved stays for so many batches; twice as many after each further move.
_REST_BATCHES = 10
_MOST_DOUBLINGS = 6
# A move must bring at least this part of the unit's own load, or it may soon go back.
_LEAST_GAIN = 0.25
# The time saved in so many ms must be more than the restore takes.
_REPAID_MS = 600_000
_RESTORE_MS, _RESTORE_BYTES_PER_MS = 100, 50_000
_FULL = 0.9  # of the memory budget: then memory alone is a reason to move


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One live executor: tasks that it runs at a time, and its memory budget; 0: not known."""

    id: str
    cores: int
    budget_bytes: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The stores that one task opens: they are in one place, and move together.

    executor: where they are; it may be gone.
    standby: the executor that follows them (`standby.py`); "": none does.
    group: of the units whose tasks run at the same time: one stage of a query.
    memory_bytes: what they take in memory.
    busy: the part of the time in which a task has them, as it was lately; None: not known yet.
    restore_ms: what the last restore took; 0: not known.
    rested: batches since it last moved; None: never, with these executors.
    moves: how often it moved, with these executors.
    """

    executor: str
    standby: str = ""
    group: str = ""
    memory_bytes: int = 0
    busy: float | None = None
    restore_ms: int = 0
    rested: int | None = None
    moves: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A unit, by its number in the list, goes to an executor."""

    unit: int
    target: str
    reason: str


def executors_of(fields: JsonFields) -> list[Executor]:
    """Return the executors that a request of the shim names."""
    return [
        Executor(
            id=e.string("id"),
            cores=e.integer("cores", 1),
            budget_bytes=e.integer("budget"),
            host=e.string("host"),
        )
        for e in fields.children("executors")
    ]


def units_of(fields: JsonFields) -> list[Unit]:
    """Return the units that a request of the shim describes."""
    return [
        Unit(
            executor=u.string("executor"),
            standby=u.string("standby") if u.has("standby") else "",
            group=u.string("group"),
            memory_bytes=u.integer("memory_bytes"),
            busy=(
                u.integer("batch_ms") / max(1, u.integer("interval_ms"))
                if u.has("batch_ms") and u.has("interval_ms")
                else None
            ),
            restore_ms=u.integer("restore_ms"),
            rested=u.integer("rested") if u.has("rested") else None,
            moves=u.integer("moves"),
        )
        for u in fields.children("units")
    ]


def plan_moves(units: Sequence[Unit], executors: Sequence[Executor]) -> list[Move]:
    """Return the moves for the next batch, in order; none if all is well.

    Units of executors that are gone get a place at once. Others move only from an executor with
    more than its share, a few a batch, and only if the time saved soon exceeds the restore. Each
    group is spread by itself: its slowest executor decides how long it takes. Then all together,
    as far as that makes no group worse.
    """
    if not units or len(executors) < 2:
        return []
    now = list(units)
    moves: list[Move] = []
    numbers: dict[str, list[int]] = {}
    for n, unit in enumerate(units):
        numbers.setdefault(unit.group, []).append(n)
    for group in numbers.values():
        plan = _Plan(now, group, executors, _Plan(now, range(len(now)), executors).load)
        plan.place_lost()
        plan.level({n for n in group if _rests(now[n])})
        for move in plan.moves:
            now[move.unit] = replace(now[move.unit], executor=move.target)
        moves += plan.moves
    if len(numbers) > 1:
        plan = _Plan(now, range(len(now)), executors)
        plan.groups = {g: _Plan(now, of, executors) for g, of in numbers.items()}
        moved = {move.unit for move in moves}
        plan.level({n for n, unit in enumerate(now) if n in moved or _rests(unit)})
        moves += plan.moves
    return moves


class _Plan:
    """The places of some units as they are after the moves so far.

    Args:
        numbers: of the units.
        others: the load of each executor with all units: it decides between equals.
    """

    def __init__(
        self,
        all_units: Sequence[Unit],
        numbers: Sequence[int],
        executors: Sequence[Executor],
        others: Mapping[str, float] | None = None,
    ) -> None:
        self.executors = {e.id: e for e in executors}
        self.others = others or dict.fromkeys(self.executors, 0.0)
        self.groups: Mapping[str, _Plan] = {}  # no group may become worse
        units = {n: all_units[n] for n in numbers}
        known = [u.busy for u in units.values() if u.busy is not None]
        self.is_known = bool(known)
        usual = sum(known) / len(known) if known else 0.0
        self.usual = usual
        self.units = _on_equal_executors(
            {n: u if u.busy is not None else replace(u, busy=usual) for n, u in units.items()}
        )
        self.weights = dict(
            zip(numbers, _weights(list(self.units.values()), executors), strict=True)
        )
        self.share = sum(self.weights.values()) / sum(e.cores for e in executors)  # of one core
        self.moves: list[Move] = []
        self.at: dict[str, list[int]] = {e.id: [] for e in executors}
        # By executor: the load of one of its cores, its memory in bytes.
        self.load = dict.fromkeys(self.at, 0.0)
        self.held = dict.fromkeys(self.at, 0)
        for n, unit in self.units.items():
            if unit.executor in self.at:
                self._put(n, unit.executor, 1)

    def _put(self, n: int, executor: str, sign: int) -> None:
        """Add a unit to an executor, or with `sign` -1 take it away."""
        unit, cores = self.units[n], self.executors[executor].cores
        if sign > 0:
            self.at[executor].append(n)
        else:
            self.at[executor].remove(n)
        self.load[executor] += sign * self.weights[n] / cores
        self.held[executor] += sign * unit.memory_bytes

    def _move(self, n: int, target: str, reason: str) -> None:
        source = self.units[n].executor
        if source in self.at:
            self._put(n, source, -1)
        self._put(n, target, 1)
        if self.groups:
            self.groups[self.units[n].group]._move(n, target, reason)
        self.moves.append(Move(unit=n, target=target, reason=reason))

    def place_lost(self) -> None:
        """Give the units of lost executors to those that follow them, and others to those that
        have least, the heaviest first.
        """
        lost = [n for n, u in self.units.items() if u.executor not in self.executors]
        for n in sorted(lost, key=lambda n: (-self.weights[n], n)):
            target = self.units[n].standby
            if target not in self.executors:
                target = self._emptiest(self.weights[n], list(self.executors))
            self._move(n, target, f"executor {self.units[n].executor} is gone")

    def _emptiest(self, weight: float, among: Sequence[str]) -> str:
        """Return who would have the least load with this much more."""
        return min(
            among,
            key=lambda e: (
                round(self.load[e] + weight / self.executors[e].cores, 9),
                self.others[e],
                e,
            ),
        )

    @property
    def _is_wanted(self) -> bool:
        """Whether a round of moves starts, or goes on."""
        most = max(self.load.values())
        going = any(
            u.rested is not None and u.rested <= _ROUND_BATCHES for u in self.units.values()
        )
        return most > self.share * (END if going else START)

    def level(self, resting: set[int]) -> None:
        """Move from the executor with most to the one with least, while that helps. Those that rest
        stay.
        """
        if not self.is_known or not self._is_wanted:
            return
        excess = sum(
            max(0.0, load - self.share) * self.executors[e].cores for e, load in self.load.items()
        )
        # Sums of loads are not exact, and one unit too many moves if they are above a whole number.
        half = math.ceil(round(excess / 2, 9))
        left = max(math.ceil(len(self.units) / _PART_OF_UNITS), half)
        resting = resting | {move.unit for move in self.moves}
        done: set[str] = set()  # those from which no move helps
        while left > 0:
            asked = [e for e in self.executors if e not in done]
            source = max(asked, key=lambda e: (self.load[e], e), default="")
            if not asked or self.load[source] <= self.share * END:
                return
            found = self._best(source, resting)
            if found is None:
                done.add(source)
                continue
            n, target = found
            times = self.load[source] / self.share
            self._move(n, target, f"executor {source} had {times:.2f} times its share")
            resting.add(n)
            left -= 1

    def _best(self, source: str, resting: set[int]) -> tuple[int, str] | None:
        """Return the unit whose move brings most, and its target."""
        a, load = self.executors[source], self.load[source]
        best, most = None, 0.0
        # Of those with as many cores, only the one with least can be the best.
        by_cores: dict[int, str] = {}
        for e in sorted(self.executors, key=lambda e: (round(self.load[e], 9), self.others[e], e)):
            by_cores.setdefault(self.executors[e].cores, e)
        targets = list(by_cores.values())
        for n in self.at[source]:
            weight = self.weights[n]
            target = self._emptiest(weight, targets)
            b = self.executors[target]
            gain = load - max(load - weight / a.cores, self.load[target] + weight / b.cores)
            if n in resting or gain <= max(most, _LEAST_GAIN * weight / a.cores):
                continue
            if self._spares_group(n, a, b) and self._repays(n, a, gain):
                best, most = (n, target), gain
        return best

    def _spares_group(self, n: int, a: Executor, b: Executor) -> bool:
        """Whether the unit's own group is spread as well afterwards."""
        group = self.groups.get(self.units[n].group)
        if group is None:
            return True
        return group.load[b.id] + group.weights[n] / b.cores <= group.load[a.id] + 1e-9

    def _repays(self, n: int, a: Executor, gain: float) -> bool:
        """Whether a move that takes `gain` from the larger load saves more time than it takes. A
        load of 1 is a usual unit's.
        """
        if a.budget_bytes and self.held[a.id] >= _FULL * a.budget_bytes:
            return True
        unit = self.units[n]
        cost = max(unit.restore_ms, _RESTORE_MS + unit.memory_bytes // _RESTORE_BYTES_PER_MS)
        return gain * self.usual * _REPAID_MS > cost


def _on_equal_executors(units: Mapping[int, Unit]) -> dict[int, Unit]:
    """Return the units as busy as they would be if all executors were as fast."""
    at: dict[str, list[float]] = {}
    for unit in units.values():
        at.setdefault(unit.executor, []).append(unit.busy or 0.0)
    usual = sum(map(sum, at.values())) / max(1, len(units))
    slowness = {
        e: min(max(sum(busy) / len(busy) / usual, 1 / _MOST_SLOWNESS), _MOST_SLOWNESS)
        if usual
        else 1.0
        for e, busy in at.items()
    }
    return {n: replace(u, busy=(u.busy or 0.0) / slowness[u.executor]) for n, u in units.items()}


def _rests(unit: Unit) -> bool:
    if unit.rested is None or unit.moves < 1:
        return False
    return unit.rested < _REST_BATCHES << min(unit.moves - 1, _MOST_DOUBLINGS)


def _weights(units: Sequence[Unit], executors: Sequence[Executor]) -> list[float]:
    """Return the load of each unit: 1 on average. Number and time count alike; memory as far as the
    budgets are full.
    """
    time = sum(u.busy or 0.0 for u in units)
    memory = sum(u.memory_bytes for u in units)
    budget = sum(e.budget_bytes for e in executors)
    fullness = min(1.0, memory / budget) if budget else 0.0
    count = len(units)
    return [
        (
            1.0
            + ((u.busy or 0.0) * count / time if time else 1.0)
            + (fullness * u.memory_bytes * count / memory if memory else 0.0)
        )
        / (2.0 + fullness)
        for u in units
    ]
