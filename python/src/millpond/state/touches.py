"""Tells which batch last wrote each row of a state. Needs the extra `tools`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from millpond.errors import ErrorKind, MillpondError, NotFoundError, UnsupportedError
from millpond.format.changelog import ChangelogReader, Op, Record
from millpond.local.scratch import scratch_directory
from millpond.model.ids import VersionId
from millpond.model.lineage import walk
from millpond.model.physical_key import FAMILY
from millpond.query.erasing import whole_read
from millpond.query.survey import survey
from millpond.rows.arrow_types import struct_type
from millpond.rows.chunks import chunks_of, pair_bytes
from millpond.state.codec import check_supported, decode_keys
from millpond.state.read_state import Keys
from millpond.state.selection import Opened, Selection, open_state
from millpond.state.tables import DEFAULT_BATCH_ROWS, Filter, shown_names, without_places
from millpond.storage import Storage
from millpond.storage.stored_file import stored_file
from millpond.store.entries import StoreVersion, entries
from millpond.store.overlay import Changed, Overlay
from millpond.store.restore.plan import checked_header


class _Touched:
    """Tells which version last wrote keys.

    Args:
        changes: physical keys and the numbers of versions, ascending.
    Attributes:
        base: the version of all other keys, or a later one than theirs.
    """

    def __init__(self, changes: Iterator[list[Changed]], base: int) -> None:
        self._changes = chain.from_iterable(changes)
        self._next = next(self._changes, None)
        self.base = base

    def versions(self, keys: Iterable[bytes]) -> list[int | None]:
        """Return the version that last wrote each key; None: not known.

        Args:
            keys: ascending, and above those of calls before.
        """
        return [self._version(key) for key in keys]

    def _version(self, key: bytes) -> int | None:
        while self._next is not None and self._next[0] < key:
            self._next = next(self._changes, None)
        if self._next is None or self._next[0] != key:
            return None
        number = self._next[1]
        assert isinstance(number, bytes)
        return int.from_bytes(number, "big")


@whole_read
def blamed(
    path: str | os.PathLike[str],
    *,
    operator: int | str | None,
    store: str | None,
    column_family: str | None,
    batch: int | None,
    keys: Keys | None,
    limit: int | None,
) -> Any:
    """Return a `pyarrow.Table`. Args, Raises: as `millpond.state.blame`."""
    opened = open_state(path, batch)
    selection = opened.select(operator, store, column_family)
    if selection.tables is not None:
        raise UnsupportedError(
            f"{opened.place} is a canonical savepoint: its tables do not tell when rows were"
            " written",
            kind=ErrorKind.UNSUPPORTED,
            hint="Ask the Spark checkpoint, or a savepoint of the format native.",
        )
    chosen = None
    if keys is not None:
        chosen = Filter(keys, selection.schema.key, shown_names(opened, selection))
    began = _times(opened)
    schema = pa.schema(
        [
            pa.field("partition", pa.int32()),
            pa.field("key", struct_type(selection.schema.key)),
            pa.field("batch", pa.int64()),
            pa.field("began", pa.timestamp("ms", "UTC")),
            pa.field("not_after", pa.int64()),
        ]
    )
    found = _rows(selection, schema, chosen, began)
    if limit is not None:
        found = _cut(found, limit)
    return pa.Table.from_batches(found, schema=schema)


def _times(opened: Opened) -> dict[int, int]:
    """Return when batches began, in ms since the epoch."""
    found = {opened.image.batch: opened.image.timestamp_ms}
    if opened.index is None:
        spark = survey(opened.storage, opened.place).spark
        if spark is not None:
            found |= {number: entry.timestamp_ms for number, entry in spark.offsets.items()}
    return found


def _cut(batches: Iterator[Any], limit: int) -> Iterator[Any]:
    left = limit
    for batch in batches:
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows


def _rows(
    selection: Selection, schema: Any, chosen: Filter | None, began: Mapping[int, int]
) -> Iterator[Any]:
    for partition, version, family in selection.versions():
        if family is None:
            continue
        check_supported(family, selection.schema)
        number = family.id.to_bytes(2, "big")
        with scratch_directory("blame") as directory, entries(version) as found:
            touched = _touched(selection.storage, version, family.id, directory)
            mine = (entry for entry in found if entry[0][FAMILY] == number)
            for part in chunks_of(mine, pair_bytes, rows=DEFAULT_BATCH_ROWS):
                stored, _ = without_places(family, part)
                keys = decode_keys(
                    stored, selection.schema, place_bytes=0, encoding=family.encoding
                )
                # A batch makes the version above its number.
                exact = touched.versions(key for key, _ in part)
                batches = [None if v is None else v - 1 for v in exact]
                times = [None if b is None else began.get(b) for b in batches]
                columns = [
                    pa.repeat(pa.scalar(partition, pa.int32()), len(part)),
                    keys,
                    pa.array(batches, pa.int64()),
                    pa.array(times, pa.timestamp("ms", "UTC")),
                    pa.array([touched.base - 1 if b is None else b for b in batches], pa.int64()),
                ]
                rows = pa.RecordBatch.from_arrays(columns, schema=schema)
                if chosen is not None:
                    rows = rows.filter(chosen.mask(rows.column(1)))
                if rows.num_rows:
                    yield rows


def _touched(storage: Storage, version: StoreVersion, family: int, directory: str) -> _Touched:
    """Read the changelogs of the lineage that are kept, the oldest first.

    Args:
        directory: for temporary files, until the result is used up.
    """
    files, changes = version.files, Overlay(directory)
    kept, base = _kept(version)
    copy = os.path.join(directory, "changelog")
    for step in kept:
        key, number = files.changelog_info(step).key, step.version.to_bytes(8, "big")
        try:
            with stored_file(storage, key, copy=copy) as file:
                reader = ChangelogReader(file, name=key)
                written = (
                    Record(Op.PUT, record.key, number)
                    for record in reader
                    if record.key[2] << 8 | record.key[3] == family
                )
                changes.apply(reader.header, written, name=key)
        except NotFoundError:  # by now it is not kept, nor are those below
            changes.forget()
            base = step.version
    return _Touched(changes.chunks(), base)


def _kept(version: StoreVersion) -> tuple[list[VersionId], int]:
    """Return the versions of the lineage whose changelogs are kept, ascending, and the one below
    them.
    """
    found: list[VersionId] = []
    files, target = version.files, version.plan.newest
    if target is None:
        return found, 0
    base = target.version
    try:
        for step in walk(target.version_id, lambda step: checked_header(files, step)):
            if not step.version or step.id == "" or not files.has_changelog(step):
                break
            if checked_header(files, step).empty_base:
                break  # an offline rewrite: it has all rows, whenever they were written
            found.append(step)
            base = step.version - 1
    except MillpondError as e:
        # What is below is not kept, or was replaced by another attempt of the same version.
        if e.kind not in (ErrorKind.CHANGELOG_MISSING, ErrorKind.OBJECT_NOT_FOUND):
            raise
    return found[::-1], base
