"""What changelogs change in the snapshot below them, in the order of keys: in memory up to a limit, beyond it in sorted files."""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from millpond.changelog import ChangelogHeader, ChangelogReader, ChangelogWriter, Op, Puts, Record
from millpond.errors import UnsupportedError
from millpond.state.chunks import chunks_of
from millpond.storage.local import translate

_LIMIT_BYTES = 96 * 1024 * 1024
_FEW = 8  # with one change in so many rows, or less, most rows are taken over by the slice
_ENTRY_BYTES = 200  # of a key and a value in a dict of Python, beside their own bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """Bytes that follow the value that the snapshot has."""

    value: bytes


Change = bytes | Appended | None  # the value; what follows the snapshot's; deleted
Changed = tuple[bytes, Change]


class Overlay:
    """The changes of some changelogs, the oldest first.

    Args:
        directory: for sorted files, as long as `chunks` is iterated.
    """

    def __init__(self, directory: str, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._directory, self._limit_bytes = directory, limit_bytes
        self._changes: dict[bytes, Change] = {}
        self._bytes = 0
        self._files: list[str] = []

    def apply_runs(
        self, header: ChangelogHeader, runs: Iterable[Puts | list[Record]], *, name: str
    ) -> None:
        """As `apply`, of records block by block."""
        for run in runs:
            if isinstance(run, Puts):
                self._changes.update(zip(run.keys, run.values, strict=True))
                self._bytes += len(run.keys) * (
                    len(run.keys[0]) + len(run.values[0]) + _ENTRY_BYTES
                )
                if self._bytes > self._limit_bytes:
                    self._spill(header)
            else:
                self.apply(header, run, name=name)

    def apply(self, header: ChangelogHeader, records: Iterable[Record], *, name: str) -> None:
        """Lay records over what is there. Raises: UnsupportedError: an operation that this version does not read; UnavailableError."""
        changes, limit_bytes = self._changes, self._limit_bytes
        for op, key, value in records:
            if op is Op.PUT:
                changes[key] = value
            elif op is Op.DELETE:
                changes[key] = None
            elif op is Op.MERGE and value is not None:
                changes[key] = _after(changes[key], value) if key in changes else Appended(value)
            else:
                raise UnsupportedError(
                    f"{name}: operation {op.name}, which this version does not read"
                )
            self._bytes += len(key) + len(value or b"") + _ENTRY_BYTES
            if self._bytes > limit_bytes:
                self._spill(header)

    def _spill(self, header: ChangelogHeader) -> None:
        path = os.path.join(self._directory, f"changes-{len(self._files)}")
        try:
            with open(path, "xb") as file:
                writer = ChangelogWriter(file, header, codec="none")
                for key, change in sorted(self._changes.items(), key=itemgetter(0)):
                    if change is None:
                        writer.delete(key)
                    elif isinstance(change, Appended):
                        writer.merge(key, change.value)
                    else:
                        writer.put(key, change)
                writer.finish()
        except OSError as e:
            raise translate(e, f"writing {path}", local=True) from e
        self._files.append(path)
        self._changes.clear()
        self._bytes = 0

    def chunks(self) -> Iterator[list[Changed]]:
        """Yield the changes, each key once, ascending; some at a time. They are used up."""
        found: Iterator[Changed] = iter(sorted(self._changes.items(), key=itemgetter(0)))
        if self._files:
            found = _joined(heapq.merge(*map(_read, self._files), found, key=itemgetter(0)))
        yield from chunks_of(found, _bytes)


def _bytes(changes: Sequence[Changed]) -> int:
    return sum(len(key) + _size(change) for key, change in changes)


def _size(change: Change) -> int:
    return len(change.value if isinstance(change, Appended) else change or b"")


def _read(path: str) -> Iterator[Changed]:
    with open(path, "rb") as file:
        for op, key, value in ChangelogReader(file, name=path):
            yield key, Appended(value or b"") if op is Op.MERGE else value


def _joined(found: Iterator[Changed]) -> Iterator[Changed]:
    """One change of each key. Of equal keys the older change comes first."""
    last: Changed | None = None
    for key, change in found:
        if last is not None and last[0] == key:
            change = _after(last[1], change.value) if isinstance(change, Appended) else change
        elif last is not None:
            yield last
        last = (key, change)
    if last is not None:
        yield last


def _after(before: Change, value: bytes) -> Change:
    if isinstance(before, Appended):
        return Appended(before.value + value)
    return (before or b"") + value


def laid_over(
    below: Iterator[list[tuple[bytes, bytes]]], above: Iterator[list[Changed]]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the entries of `below` with the changes of `above`; all three ascend by key, and come some at a time, never none."""
    return filter(None, _laid_over(below, above))  # where every row was deleted, nothing is left


def _laid_over(
    below: Iterator[list[tuple[bytes, bytes]]], above: Iterator[list[Changed]]
) -> Iterator[list[tuple[bytes, bytes]]]:
    rows, changes = next(below, None), next(above, None)
    while rows and changes:
        last = changes[-1][0]
        if rows[-1][0] <= last:
            end = _until(changes, rows[-1][0])
            yield _changed(rows, changes[:end])
            changes = changes[end:] or next(above, None)
            rows = next(below, None)
        else:
            end = _until(rows, last)
            yield _changed(rows[:end], changes)
            rows, changes = rows[end:], next(above, None)
    if rows:
        yield rows
        yield from below
    while changes:
        yield _changed([], changes)
        changes = next(above, None)


def _until(ascending: list[tuple[bytes, bytes]] | list[Changed], key: bytes) -> int:
    """How many of them come before `key`, or have it."""
    return bisect_right(ascending, key, key=itemgetter(0))


def _changed(rows: list[tuple[bytes, bytes]], changes: list[Changed]) -> list[tuple[bytes, bytes]]:
    """Rows with changes."""
    if len(changes) * _FEW > len(rows):
        return _changed_densely(rows, changes)
    result: list[tuple[bytes, bytes]] = []
    position = 0
    for key, change in changes:
        end = bisect_left(rows, key, position, key=itemgetter(0))
        result += rows[position:end]
        there = end < len(rows) and rows[end][0] == key
        position = end + there
        if isinstance(change, Appended):
            result.append((key, rows[end][1] + change.value if there else change.value))
        elif change is not None:
            result.append((key, change))
    result += rows[position:]
    return result


def _changed_densely(
    rows: list[tuple[bytes, bytes]], changes: list[Changed]
) -> list[tuple[bytes, bytes]]:
    result = dict(rows)
    for key, change in changes:
        if type(change) is bytes:
            result[key] = change
        elif isinstance(change, Appended):
            result[key] = result.get(key, b"") + change.value
        else:
            result.pop(key, None)
    return sorted(result.items(), key=itemgetter(0))  # quick: all but new keys are in order
