"""Tells how the rows of a key changed from batch to batch. Needs the extra `tools`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import (
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
)
from millpond.format import spark_names
from millpond.query.erasing import whole_read
from millpond.query.from_checkpoint import look
from millpond.query.glance import glance
from millpond.query.image import Image
from millpond.query.survey import Survey, survey
from millpond.rows.readable import readable_rows
from millpond.spark.metadata import logged_batches, read_spark_metadata
from millpond.state.glancing import open_for_lookups
from millpond.state.key_reader import KeyReader
from millpond.state.lookups import Change, Key, KeyHistory
from millpond.state.open_stores import OpenStores
from millpond.state.selection import Opened, open_state
from millpond.state.writing import plain
from millpond.storage import Storage

_NOT_KEPT = {ErrorKind.VERSION_EXPIRED, ErrorKind.BATCH_NOT_COMMITTED}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The column family that a caller means."""

    operator: int | str | None
    store: str | None
    column_family: str | None


@dataclass(frozen=True, slots=True)
class _Version:
    """The rows of the key after one batch."""

    batch: int
    at_ms: int
    savepoint: str  # "": the Spark checkpoint
    rows: list[dict[str, Any]]


@whole_read
def history_of(
    path: str | os.PathLike[str],
    key: Key,
    wanted: Wanted,
    savepoints: Sequence[str | os.PathLike[str]],
) -> KeyHistory:
    """Return how a key changed. Args, Raises: as `millpond.state.history`."""
    unreadable: list[tuple[int, str]] = []
    # Whether a key is erased meanwhile, the whole read tells.
    newest = replace(open_for_lookups(path, None, wanted.operator), erasures=None)
    query_id = newest.image.query_id
    if newest.index is None:
        spark = read_spark_metadata(newest.storage, batches=(), operators=(), damaged=[])
        query_id = spark.query_id
    versions = [_of_savepoint(place, query_id, key, wanted) for place in savepoints]
    if newest.index is None:
        versions += _of_checkpoint(newest, spark.kept_batches, key, wanted, unreadable)
    else:
        versions.append(_of_savepoint(path, query_id, key, wanted))
    versions.sort(key=lambda version: (version.batch, version.savepoint == ""))
    if not versions:
        raise NotFoundError(
            f"{newest.place}: the state of no batch can be read",
            kind=ErrorKind.BATCH_NOT_COMMITTED,
        )
    return KeyHistory(
        path=newest.place,
        batches=tuple(sorted({version.batch for version in versions})),
        changes=tuple(_changes(versions)),
        unreadable=tuple(unreadable),
    )


def _changes(versions: Sequence[_Version]) -> Iterator[Change]:
    """Yield the first version, and each that differs from the one before it."""
    before: _Version | None = None
    for version in versions:
        # as JSON: a NaN is unequal to itself
        if before is None or plain(version.rows) != plain(before.rows):
            yield Change(
                batch=version.batch,
                at_ms=version.at_ms,
                savepoint=version.savepoint,
                since_batch=None if before is None else before.batch,
                before=() if before is None else tuple(before.rows),
                after=tuple(version.rows),
            )
        before = version


def _of_savepoint(
    path: str | os.PathLike[str], query_id: str | None, key: Key, wanted: Wanted
) -> _Version:
    opened = open_state(path, None)
    ids = opened.image.query_id, query_id
    if opened.index is None or (None not in ids and ids[0] != ids[1]):
        what = "no savepoint" if opened.index is None else "a savepoint of another query"
        raise InvalidInputError(
            f"{opened.place} is {what}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=f"Give savepoints of the query {query_id}.",
        )
    with _reader(opened, wanted) as reader:
        rows = _rows(reader, key)
    return _Version(opened.image.batch, opened.image.timestamp_ms, opened.place, rows)


def _of_checkpoint(
    newest: Opened,
    batches: Sequence[int],
    key: Key,
    wanted: Wanted,
    unreadable: list[tuple[int, str]],
) -> Iterator[_Version]:
    """Yield the versions of a Spark checkpoint, ascending."""
    storage = newest.storage
    with _reader(newest, wanted) as reader:
        names = reader.shown
        _rows(reader, key)  # a wrong key is refused before any batch is read
    with closing(_Batches(newest, key, wanted, names)) as reading:
        for batch in batches:
            try:
                yield reading.read(batch)
            except UnavailableError:
                raise
            except MillpondError as e:
                if e.kind not in _NOT_KEPT and _is_kept(storage, batch):
                    unreadable.append((batch, f"{e.kind.value}: {e.message}"))


class _Batches:
    """Reads a key after one batch and the other, ascending, from the stores that can have it. One
    that is open is taken along from batch to batch: each reads only what it adds.

    Args:
        newest: the newest batch.
        names: of the key's columns, as `KeyReader` takes them.
    """

    def __init__(self, newest: Opened, key: Key, wanted: Wanted, names: Mapping[str, str]) -> None:
        self._storage, self._place = newest.storage, newest.place
        self._operator = newest.operator(wanted.operator).operator
        self._key, self._wanted, self._names = key, wanted, names
        self._stores: OpenStores | None = None
        self._survey: Survey | None = None

    def read(self, batch: int) -> _Version:
        """Return what the key has after a batch.

        Raises: as `query.from_checkpoint.look` and `KeyReader.find`.
        """
        try:
            image, _ = glance(self._storage, batch, self._operator)
            return self._read(image, glanced=True)
        except UnavailableError:
            raise
        except MillpondError:
            # A look at the whole query tells what is wrong, or that nothing is.
            if self._survey is None:
                self._survey = survey(self._storage, self._place)
            image = look(self._storage, self._survey, self._place, batch)
            return self._read(image, glanced=False)

    def _read(self, image: Image, *, glanced: bool) -> _Version:
        opened = Opened(
            storage=self._storage, place=self._place, image=image, index=None, glanced=glanced
        )
        before = self._stores
        self._stores = OpenStores(opened) if before is None else before.advanced(opened)
        if before is not None:
            before.close()
        wanted = self._wanted
        reader = KeyReader(
            self._stores, wanted.operator, wanted.store, wanted.column_family, names=self._names
        )
        rows = _plain_rows(reader.find([self._key]).rows)
        return _Version(image.batch, image.timestamp_ms, "", rows)

    def close(self) -> None:
        """Close the open stores."""
        if self._stores is not None:
            self._stores.close()


def _is_kept(storage: Storage, batch: int) -> bool:
    """Whether Spark's logs go back to a batch. A query that runs goes on dropping the oldest."""
    logs = (spark_names.COMMITS_DIR, spark_names.OFFSETS_DIR)
    return all(batch >= min(logged_batches(storage, log), default=0) for log in logs)


@contextmanager
def _reader(opened: Opened, wanted: Wanted) -> Iterator[KeyReader]:
    stores = OpenStores(opened)
    try:
        yield KeyReader(stores, wanted.operator, wanted.store, wanted.column_family)
    finally:
        stores.close()


def _rows(reader: KeyReader, key: Key) -> list[dict[str, Any]]:
    """Return the rows of the key."""
    return _plain_rows(reader.table([key]))


def _plain_rows(table: Any) -> list[dict[str, Any]]:
    """Return rows without their partition: a rescale changes that one."""
    rows = readable_rows(table.to_batches())
    return [{"key": row["key"], "value": row["value"]} for row in rows]
