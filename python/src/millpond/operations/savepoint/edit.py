"""`edit`: writes a new savepoint in which one column family has other rows, or other columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.local.scratch import scratch_directory
from millpond.model.ids import StoreId
from millpond.operations.output.atomic_target import building
from millpond.operations.output.copying import Progress, write_image
from millpond.operations.savepoint.create import origin_and_new, write_index
from millpond.operations.savepoint.new_columns import with_columns
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import Image, StoreImage, operator_info, without_state
from millpond.query.index import CANONICAL, TableEntry, damaged, read_index
from millpond.rows import require_tools
from millpond.spark.column_changes import ColumnChanges
from millpond.state.savepoint_rows import open_rows
from millpond.state.selection import select
from millpond.storage import open_checkpoint
from millpond.storage.given import takes_options

Function = Callable[[Any], Any]
"""Takes a `pyarrow.RecordBatch` with the columns `key` and `value`. Returns one like it, with fewer
or other rows; None: no row.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditReport:
    """What `edit` did."""

    savepoint: str  # the new one
    operator: int
    store: str
    column_family: str
    rows_before: int
    rows_after: int
    dry_run: bool
    columns: tuple[str, ...] = ()  # of the values; empty if they are as they were

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@takes_options
def edit(
    savepoint: str | os.PathLike[str],
    new_savepoint: str | os.PathLike[str],
    *,
    operator: int | str | None = None,
    store: str | None = None,
    column_family: str | None = None,
    columns: ColumnChanges | None = None,
    function: Function | None = None,
    table: Any = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, object] | None = None,
) -> EditReport:
    """Write a new canonical savepoint in which the state of one operator is another. All else is
    as it was.

    Rows pass by as record batches. In a column family with lists of values, `value` is a list.
    Spark keeps second records beside the rows: counts of lists, times of expiry, timers by time,
    numbers of a join's rows. They are made anew to fit. Memory holds 8 bytes of each new row, a
    hash of its key, to find a key that comes twice. Of a row of a join it holds 24 bytes, to number
    the rows.

    Args:
        savepoint: native or canonical; it is not changed.
        new_savepoint: path or URI that does not exist yet, or is an empty directory. Afterwards it
            is complete or absent.
        operator, store, column_family: as for `millpond.read_state`.
        columns: other columns of the values, for a job that was changed. Spark's schema files say
            so too.
        function: called with every batch of rows, `key` and `value`. The rows that it returns
            replace them. Keys may be others. With `columns`, values have the new columns already.
        table: instead of `function`: a `pyarrow.Table`, or an iterable of record batches, with
            `key` and `value`. It replaces all rows. With `columns`, it has the new ones.
        dry_run: do all of it but keep nothing. The report says what there would be.
        progress: called now and then: how many stores are read, and how many there are in all.
        options: of the storages, by name.
    Raises:
        InvalidInputError: NOT_A_SAVEPOINT, TARGET_NOT_EMPTY, OPERATOR_UNKNOWN; INVALID_ARGUMENT:
            columns that do not fit, or are not there; a key twice.
        FormatError: SAVEPOINT_DAMAGED.
        UnsupportedError: UNSUPPORTED: the rows follow from those of another column family (the hint
            names it: edit that one); `columns` of state in Avro, which Spark changes by itself; or
            the extra `tools` is not installed.
    """
    require_tools()
    # Start-up time: numpy and pyarrow.
    from millpond.operations.savepoint.edited_state import EditedState

    if function is not None and table is not None:
        raise InvalidInputError(
            "edit takes either a function or a table",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Give a function that changes rows, or a table that replaces them all.",
        )
    if function is None and table is None and not columns:
        raise InvalidInputError(
            "nothing is to be changed",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Give a function, a table, or changes to columns.",
        )
    origin, new_root = origin_and_new(savepoint, new_savepoint)
    storage = open_checkpoint(origin)
    index = read_index(storage, origin)
    image = savepoint_image(storage, index)
    selection = select(origin, operator=operator, store=store, column_family=column_family)
    info = operator_info(image, selection.operator.operator)
    source = open_rows(storage, image, index)
    new_columns = None
    if columns:
        image, new_columns = with_columns(image, selection, columns)
    edited = EditedState(source, image, info, selection, new_columns)
    if dry_run:
        with scratch_directory("edit") as directory:
            edited.write(directory, function, table, progress)
    else:
        with building(new_root) as target, target.address.scratch("edit") as directory:
            tables, files = edited.write(directory, function, table, progress)
            for path, entry in files:
                target.storage.put_file(entry.key, path, if_absent=True, link=True)
            changed = _counted(without_state(image), tables)
            written = write_image(changed, storage, target, link=True, verify=True, damaged=damaged)
            written.files |= {entry.key: entry for _, entry in files}
            write_index(target, changed, written, format=CANONICAL, tables=tuple(tables))
    return EditReport(
        savepoint=new_root,
        operator=selection.operator.operator,
        store=selection.store,
        column_family=selection.family,
        rows_before=edited.before,
        rows_after=edited.after,
        dry_run=dry_run,
        columns=tuple(edited.first.schema.value.names) if columns else (),
    )


def _counted(image: Image, tables: Iterable[TableEntry]) -> Image:
    """Return the image with the numbers of keys that its tables have."""
    keys: dict[StoreId, int] = {}
    for table in tables:
        keys[table.store] = keys.get(table.store, 0) + (0 if table.family.internal else table.rows)

    def counted(operator: int, store: StoreImage) -> StoreImage:
        return replace(store, keys=keys.get(StoreId(operator, store.partition, store.name), 0))

    return replace(
        image,
        operators=tuple(
            replace(op, stores=tuple(counted(op.operator, s) for s in op.stores))
            for op in image.operators
        ),
    )
