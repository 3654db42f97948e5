"""Lists what a query keeps: operators, stores, column families, their columns, their rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from millpond.query.erasing import whole_read
from millpond.rows import require_tools
from millpond.spark.types import Struct, type_text
from millpond.state.savepoint_rows import open_rows
from millpond.state.selection import choices_of, open_state
from millpond.storage.given import takes_options


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFamily:
    """One column family of one store of one operator, in all partitions."""

    operator: int
    name: str  # of the operator
    store: str
    column_family: str
    internal: bool  # Spark keeps it for itself, beside rows of the job
    key: dict[str, str]  # column -> Spark's name of its type
    value: dict[str, str]
    rows: int  # keys; one with a list of values counts once. -1: not counted
    arguments: str  # of `millpond state read`, which read it


@dataclass(frozen=True, slots=True, kw_only=True)
class StateList:
    """What a query keeps. `to_json` is the contract of `millpond state list --json`."""

    path: str
    batch: int
    families: tuple[StateFamily, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@takes_options
@whole_read
def list_state(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    count: bool = True,
    options: Mapping[str, object] | None = None,
) -> StateList:
    """Return which operators, stores and column families a query has, with the columns of key and
    value, and how many rows.

    Columns of a join's key have the names that they have in its inputs, as far as the rows tell.

    Args:
        path: Spark checkpoint of a query, running or stopped, or a savepoint: path or URI.
        batch: a committed batch whose state is retained; None: the last one.
        count: count the rows, and name a join's columns. That reads the state. False: read Spark's
            schemas alone.
        options: of the storage, by name.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT. NotFoundError: BATCH_NOT_COMMITTED, VERSION_EXPIRED.
        FormatError: a file is damaged.
        UnsupportedError: FOREIGN_CHECKPOINT; UNSUPPORTED: the extra `tools` is not installed.
    """
    opened = open_state(path, batch)
    counts: dict[tuple[int, str, str], int] = {}
    if count:
        require_tools()
        source = open_rows(opened.storage, opened.image, opened.index)
        for store in source.stores():
            for rows in source.rows(store):
                place = (store.store.operator, store.store.name, rows.family.name)
                counts[place] = counts.get(place, 0) + len(rows.keys)
    families = []
    for op in opened.image.operators:
        for choice in choices_of(opened.image, op.operator):
            schema = choice.schema
            names: dict[str, str] = {}
            if count:
                from millpond.state.join_columns import join_columns  # start-up time: pyarrow

                names = join_columns(opened, op.operator, choice.store, schema.name)
            families.append(
                StateFamily(
                    operator=op.operator,
                    name=choice.name,
                    store=choice.store,
                    column_family=schema.name,
                    internal=schema.name.startswith("$"),
                    key=_columns(schema.key, names),
                    value=_columns(schema.value, {}),
                    rows=counts.get((op.operator, choice.store, schema.name), 0) if count else -1,
                    arguments=choice.arguments(),
                )
            )
    return StateList(path=opened.place, batch=opened.image.batch, families=tuple(families))


def _columns(struct: Struct, names: dict[str, str]) -> dict[str, str]:
    return {names.get(name, name): type_text(kind) for name, kind in struct.columns}
