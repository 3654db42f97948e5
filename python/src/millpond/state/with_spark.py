"""Reads a state with Spark: a task for each of its partitions.

The driver opens the state. A task looks at its own partition alone, however many there are.

Needs the extra `tools`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.query.erasing import read_erasures, unerased
from millpond.query.image import OperatorImage
from millpond.query.index import CANONICAL, read_index
from millpond.spark.state_schemas import FamilySchema
from millpond.state.glancing import looking_again
from millpond.state.read_state import Keys
from millpond.state.selection import Selection, open_state
from millpond.state.tables import (
    DEFAULT_BATCH_ROWS,
    Filter,
    batches_of,
    schema_of,
    shown_names,
)
from millpond.storage import Storage, open_checkpoint, root_of
from millpond.storage.given import given, reached_by


def read_with_spark(
    spark: Any,
    path: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    batch: int | None = None,
    keys: Keys | None = None,
    raw: bool = False,
    limit: int | None = None,
) -> Any:
    """Return the state that `tables.scan_state` reads, or `limit` rows of it, as a DataFrame of
    `spark`.

    A task reads each partition of the state.
    """
    opened = open_state(path, batch)
    selection = opened.select(operator, store, column_family)
    names: Mapping[str, str] = {}
    if keys is not None:
        names = shown_names(opened, selection)
        # Raises here, not in a task, if `keys` do not fit.
        Filter(keys, selection.schema.key, names)
    chosen = _Chosen(
        place=root_of(path),
        is_savepoint=opened.index is not None,
        batch=selection.batch,
        operator=_with_store(selection.operator, selection.store),
        store=selection.store,
        family=selection.family,
        schema=selection.schema,
        spark_format=selection.spark_format,
        keys=keys,
        names=names,
        raw=raw,
    )
    told = given()

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with reached_by(told):
                    storage = open_checkpoint(chosen.place)
                yield from chosen.rows(storage, number)

    schema = spark.createDataFrame(schema_of(selection, raw).empty_table()).schema
    count = max(image.partition for image in chosen.operator.stores) + 1
    frame = spark.range(0, count, 1, count).mapInArrow(read, schema)
    return frame if limit is None else frame.limit(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """What each task is told of the state that the driver has opened.

    operator: with the stores of the name `store` alone.
    names: of a join's key columns, by stored names.
    """

    place: str
    is_savepoint: bool
    batch: int
    operator: OperatorImage
    store: str
    family: str
    schema: FamilySchema
    spark_format: int
    keys: Keys | None
    names: Mapping[str, str]
    raw: bool

    def rows(self, storage: Storage, partition: int) -> Iterator[Any]:
        """Yield the rows of a partition as `pyarrow.RecordBatch`es.

        Raises: as `tables.scan_state`.
        """
        chosen = None if self.keys is None else Filter(self.keys, self.schema.key, self.names)
        before = read_erasures(storage)
        with (
            unerased(storage, self.place, before),
            looking_again(storage, self.place, self.batch),
        ):
            with unerased(storage, self.place, before):
                selection = self._selection(storage)
            yield from batches_of(
                selection,
                schema_of(selection, self.raw),
                chosen,
                self.raw,
                DEFAULT_BATCH_ROWS,
                (partition,),
            )

    def _selection(self, storage: Storage) -> Selection:
        operator, tables, sums = self.operator, None, {}
        if self.is_savepoint:
            # An erasure since then has changed the files, and told in the index.
            index = read_index(storage, self.place)
            (operator,) = [
                _with_store(op, self.store)
                for op in index.image.operators
                if op.operator == self.operator.operator
            ]
            tables = index if index.format == CANONICAL else None
            sums = {key: entry.crc32 for key, entry in index.files.items()}
        return Selection(
            storage=storage,
            batch=self.batch,
            operator=operator,
            store=self.store,
            family=self.family,
            schema=self.schema,
            spark_format=self.spark_format,
            tables=tables,
            sums=sums,
        )


def _with_store(operator: OperatorImage, name: str) -> OperatorImage:
    return replace(operator, stores=tuple(one for one in operator.stores if one.name == name))
