"""The changes that changelogs make to the snapshot below them, ascending by key.

They are held in memory up to a limit, beyond it in sorted files.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from millpond.errors import UnsupportedError
from millpond.format.changelog import (
    ChangelogHeader,
    ChangelogReader,
    ChangelogWriter,
    Op,
    Puts,
    Record,
)
from millpond.rows.chunks import chunks_of
from millpond.storage.local import translate_restored

_LIMIT_BYTES = 96 * 1024 * 1024
# With at most one change in this many rows, unchanged rows are copied slice by slice.
_FEW = 8
_ENTRY_BYTES = 200  # what Python needs for a dict entry, beside the bytes of key and value


@dataclass(frozen=True, slots=True)
class Appended:
    """Bytes to be appended to the value in the snapshot."""

    value: bytes


Change = bytes | Appended | None  # the new value; what is appended to the old one; None: deleted
Changed = tuple[bytes, Change]


class Overlay:
    """The changes of some changelogs. Apply the oldest changelog first.

    Args:
        directory: for sorted files; it must exist until `chunks` is exhausted.
    """

    def __init__(self, directory: str, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._directory, self._limit_bytes = directory, limit_bytes
        self._changes: dict[bytes, Change] = {}
        self._bytes = 0
        self._files: list[str] = []

    def apply_runs(
        self, header: ChangelogHeader, runs: Iterable[Puts | list[Record]], *, name: str
    ) -> None:
        """As `apply`, but block by block."""
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
        """Apply records on top of those that were applied before.

        Raises: UnsupportedError: an operation that this version does not read; UnavailableError.
        """
        changes, limit_bytes = self._changes, self._limit_bytes
        for op, key, value in records:
            if op is Op.PUT:
                changes[key] = value
            elif op is Op.DELETE:
                changes[key] = None
            elif op is Op.MERGE and value is not None:
                changes[key] = after(changes[key], value) if key in changes else Appended(value)
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
            raise translate_restored(e, f"writing {path}") from e
        self._files.append(path)
        self._changes.clear()
        self._bytes = 0

    def forget(self) -> None:
        """Forget all changes."""
        for path in self._files:
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._files.clear()
        self._changes.clear()
        self._bytes = 0

    def taken(self) -> dict[bytes, Change]:
        """Return the changes by key, in no order. Uses them up."""
        if self._files:
            return dict(chain.from_iterable(self.chunks()))
        changes, self._changes = self._changes, {}
        return changes

    def chunks(self) -> Iterator[list[Changed]]:
        """Yield the changes in lists, ascending, each key once. Uses them up."""
        found: Iterator[Changed] = iter(sorted(self._changes.items(), key=itemgetter(0)))
        if self._files:
            found = _joined(heapq.merge(*map(_read, self._files), found, key=itemgetter(0)))
        yield from chunks_of(found, _bytes)


def _bytes(changes: Sequence[Changed]) -> int:
    return sum(len(key) + size_of(change) for key, change in changes)


def size_of(change: Change) -> int:
    """Return how many bytes a change has."""
    return len(change.value if isinstance(change, Appended) else change or b"")


def _read(path: str) -> Iterator[Changed]:
    try:
        with open(path, "rb") as file:
            for op, key, value in ChangelogReader(file, name=path):
                yield key, Appended(value or b"") if op is Op.MERGE else value
    except OSError as e:
        raise translate_restored(e, f"reading {path}") from e


def _joined(found: Iterator[Changed]) -> Iterator[Changed]:
    """Yield one change for each key. `found` has the older of two changes of a key first."""
    last: Changed | None = None
    for key, change in found:
        if last is not None and last[0] == key:
            change = after(last[1], change.value) if isinstance(change, Appended) else change
        elif last is not None:
            yield last
        last = (key, change)
    if last is not None:
        yield last


def after(before: Change, value: bytes) -> Change:
    """Return a change, and then `value` appended, as one change."""
    if isinstance(before, Appended):
        return Appended(before.value + value)
    return (before or b"") + value


def laid_over(
    below: Iterator[list[tuple[bytes, bytes]]], above: Iterator[list[Changed]]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the entries of `below` with the changes of `above` applied.

    All three ascend by key. They come in lists that are never empty.
    """
    return filter(None, _laid_over(below, above))  # a list is empty where every row was deleted


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
    """Return how many of them have `key` or a smaller one."""
    return bisect_right(ascending, key, key=itemgetter(0))


def _changed(rows: list[tuple[bytes, bytes]], changes: list[Changed]) -> list[tuple[bytes, bytes]]:
    """Return `rows` with `changes` applied."""
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
    return sorted(result.items(), key=itemgetter(0))  # fast: only new keys are out of order
