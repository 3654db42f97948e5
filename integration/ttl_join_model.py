"""A model of a join of two streams whose rows end: what Spark's join keeps by key and index, and
when each of these rows was last written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from integration.provider import Timed
from integration.ttl_model import age_at

HOUR_S = 3600
_DELAY_S = 300
_NEVER_S = -(10**9)

Event = tuple[str, int, int]
"""Key, event time in seconds, value."""


@dataclass(eq=False)
class JoinRow:
    """A row in the state of one side. `written` numbers the writes of all rows."""

    event: Event
    matched: bool
    age: int | None
    written: int


@dataclass
class JoinModel:
    """Both sides of an inner or a left semi join by key.

    A left semi join takes the right rows first, and removes left rows that have a match.

    Args:
        timed_by_events: rows match within an hour, and the watermark is 300 s behind.
    """

    kind: str = "inner"
    timed_by_events: bool = False
    sides: tuple[dict[str, list[JoinRow]], dict[str, list[JoinRow]]] = field(
        default_factory=lambda: ({}, {})
    )
    watermarks: list[int] = field(default_factory=lambda: [_NEVER_S] * 2)  # the last, and this
    _newest: list[int] = field(default_factory=lambda: [_NEVER_S] * 2)
    _writes: int = 0

    def restart(self) -> None:
        """The query starts: Spark keeps the watermark, not the newest time of each stream."""
        self._newest = [_NEVER_S] * 2

    def begin(self, timed: Timed | None) -> int:
        """Begin a batch. Return how many rows end."""
        if timed is None:
            return 0
        ended = 0
        for side in self.sides:
            every = [row for rows in side.values() for row in rows]
            due = [row for row in every if _is_due(row, timed)]
            for row in sorted(due, key=lambda row: (row.age or 0, row.written)):
                ended += _end(side[row.event[0]], row, timed)
            for row in every:
                if row.age is None:
                    self._write(row, timed)
            _drop_empty(side)
        return ended

    def batch(self, inputs: Sequence[Sequence[Event]], timed: Timed | None) -> list[list[object]]:
        """Do a batch that has begun, and return its output."""
        late, now = self.watermarks
        output: list[list[object]] = []
        order = (1, 0) if self._is_semi else (0, 1)
        for here in order:
            for event in inputs[here]:
                if not self.timed_by_events or event[1] > late:
                    output += self._one(here, event, here == order[1], now, timed)
        self._evict(now, timed)
        for here, events in enumerate(inputs):
            self._newest[here] = max([self._newest[here], *(event[1] for event in events)])
        self.watermarks = [now, max(now, min(self._newest) - _DELAY_S)]
        return sorted(output, key=repr)

    @property
    def _is_semi(self) -> bool:
        return self.kind == "left_semi"

    def _one(
        self, here: int, event: Event, is_second: bool, watermark: int, timed: Timed | None
    ) -> list[list[object]]:
        """Join a row with the other side, and keep it. Return its output."""
        others = self.sides[1 - here].get(event[0], [])
        found = [row for row in others if self._meet(event, row)]
        if self._is_semi and here == 0:
            found = found[:1]
            output: list[list[object]] = [list(event[::2])] * len(found)
        elif self._is_semi:
            output = [list(row.event[::2]) for row in found]
        else:
            pairs = [(event, row.event)[:: 1 if here == 0 else -1] for row in found]
            output = [[left[0], left[2], right[2]] for left, right in pairs]
        if self._is_semi and here == 1:
            self._remove(others, lambda row: row in found, timed)
        else:
            for row in found:
                if not row.matched:
                    row.matched = True
                    self._write(row, timed)
        is_given_out = self._is_semi and here == 0 and bool(found)
        if not is_given_out and not (is_second and self._is_over(event, watermark)):
            row = JoinRow(event, bool(found), None, 0)
            self._write(row, timed)
            self.sides[here].setdefault(event[0], []).append(row)
        return output

    def _meet(self, event: Event, row: JoinRow) -> bool:
        return not self.timed_by_events or abs(event[1] - row.event[1]) <= HOUR_S

    def _is_over(self, event: Event, watermark: int) -> bool:
        return self.timed_by_events and event[1] < watermark - HOUR_S

    def _evict(self, watermark: int, timed: Timed | None) -> None:
        for side in self.sides:
            for rows in side.values():
                self._remove(rows, lambda row: self._is_over(row.event, watermark), timed)
            _drop_empty(side)

    def _remove(
        self, rows: list[JoinRow], is_over: Callable[[JoinRow], bool], timed: Timed | None
    ) -> None:
        index = 0
        while index < len(rows):
            if is_over(rows[index]):
                last = rows.pop()
                if index < len(rows):
                    rows[index] = last  # Spark writes it there
                    self._write(last, timed)
            else:
                index += 1

    def _write(self, row: JoinRow, timed: Timed | None) -> None:
        self._writes += 1
        row.age = None if timed is None else age_at(timed)
        row.written = self._writes

    def rows(self, side: int) -> list[Event]:
        """Return the rows of a side, sorted."""
        return sorted(row.event for rows in self.sides[side].values() for row in rows)

    def ages(self, side: int) -> list[int | None]:
        """Return their ages, sorted."""
        ages = [row.age for rows in self.sides[side].values() for row in rows]
        return sorted(ages, key=lambda age: age or 0)


def _is_due(row: JoinRow, timed: Timed) -> bool:
    return row.age is not None and row.age * 1000 + timed.ttl_ms <= timed.now_ms


def _end(rows: list[JoinRow], row: JoinRow, timed: Timed) -> int:
    if row not in rows:
        return 0
    before, index = len(rows), rows.index(row)
    while len(rows) - 1 > index and _is_due(rows[-1], timed):
        rows.pop()
    last = rows.pop()
    if last is not row:
        rows[index] = last
    return before - len(rows)


def _drop_empty(side: dict[str, list[JoinRow]]) -> None:
    for key in [key for key, rows in side.items() if not rows]:
        del side[key]
