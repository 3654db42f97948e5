"""Reads single entries of one store at one version: the blocks of its snapshot that can hold them,
and the changelogs above.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain

from millpond.local import rocks
from millpond.local.scratch import scratch_directory
from millpond.store.entries import Entry, StoreVersion, changes_of, databases_of
from millpond.store.overlay import Appended, Change
from millpond.store.restore.execute import Fetching


class PointReader:
    """An open store. It keeps the changes above the snapshot in memory, and links or copies of the
    snapshot's files in a scratch directory until it is closed.

    Raises: as `store.entries.entry_chunks`.
    """

    def __init__(self, version: StoreVersion) -> None:
        with ExitStack() as stack:
            directory = stack.enter_context(scratch_directory("lookup"))
            self._changes: dict[bytes, Change] = dict(
                chain.from_iterable(changes_of(version, directory))
            )
            self._changed = list(self._changes)  # ascending
            self._databases = []
            # RocksDB checks the blocks that it reads. To check whole files would be to read them.
            fetching = Fetching(verify_checksums=False)
            for database in databases_of(version, f"{directory}/db", fetching):
                reader = rocks.Reader(database.directory, name=database.name)
                stack.callback(reader.close)
                self._databases.append((reader, database.owns))
            self._stack = stack.pop_all()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a physical key; None: there is none."""
        if key not in self._changes:
            return self._below(key)
        change = self._changes[key]
        if isinstance(change, Appended):
            return (self._below(key) or b"") + change.value
        return change

    def starting_with(self, prefix: bytes) -> list[Entry]:
        """Return the entries whose physical keys start with `prefix`, ordered by key."""
        found = dict(
            entry
            for reader, owns in self._databases
            for entry in reader.starting_with(prefix)
            if owns is None or owns(entry[0])
        )
        for key in self._changed_with(prefix):
            change = self._changes[key]
            if change is None:
                found.pop(key, None)
            elif isinstance(change, Appended):
                found[key] = found.get(key, b"") + change.value
            else:
                found[key] = change
        return sorted(found.items())

    def close(self) -> None:
        """Remove the scratch directory."""
        self._stack.close()

    def _below(self, key: bytes) -> bytes | None:
        for reader, owns in self._databases:
            if owns is None or owns(key):
                return reader.get(key)
        return None

    def _changed_with(self, prefix: bytes) -> Iterator[bytes]:
        for number in range(bisect_left(self._changed, prefix), len(self._changed)):
            if not self._changed[number].startswith(prefix):
                return
            yield self._changed[number]
