"""The names of a join's key columns, which Spark stores as `field0`, `field1`, ...

Each row that a join keeps is a whole row of its input, the columns of the key among them. So the
first rows tell which column of the value a column of the key is. An expression (`a.id + 1`) is no
column, and keeps its name. So does a column that equals two columns of the value in all rows.

Needs the extra `tools`.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.query.image import operator_info
from millpond.state.selection import Opened, choices_of

_ROWS = 1000
_PLACE = re.compile(r"(left|right)-")
_FIELD = re.compile(r"field\d+")
JOIN = "symmetricHashJoin"


def join_columns(opened: Opened, operator: int, store: str, family: str) -> dict[str, str]:
    """Return the columns of the inputs by the names that the key has for them, `field0: order_id`.

    Empty for any other operator, and for a join that has no row.
    """
    info = operator_info(opened.image, operator)
    side = _PLACE.match(store) or _PLACE.match(family)
    if info.name != JOIN or side is None:
        return {}
    of_side = [
        choice
        for choice in choices_of(opened.image, operator)
        if (choice.store.startswith(side[0]) or choice.schema.name.startswith(side[0]))
        and not choice.schema.name.startswith("$")
    ]
    rows = max(of_side, key=lambda choice: len(choice.schema.value.names), default=None)
    if rows is None:
        return {}
    # They import one another: this one decides names, that one decodes.
    from millpond.state.tables import first_rows

    selection = opened.selection(operator, rows.store, rows.schema.name)
    found = first_rows(selection, _ROWS)
    return {} if found is None else _matched(found)


def _matched(rows: Any) -> dict[str, str]:
    keys, values = _columns(rows.column("key")), _columns(rows.column("value"))
    names: dict[str, str] = {}
    for name, column in keys.items():
        if not _FIELD.fullmatch(name):
            continue
        alike = [other for other, value in values.items() if _equal(column, value)]
        if len(alike) == 1:
            names[name] = alike[0]
    taken = list(names.values())
    return {old: new for old, new in names.items() if taken.count(new) == 1 and new not in keys}


def _columns(struct: Any) -> dict[str, Any]:
    array = struct.combine_chunks() if isinstance(struct, pa.ChunkedArray) else struct
    return dict(zip([field.name for field in array.type], array.flatten(), strict=True))


def _equal(column: Any, other: Any) -> bool:
    if column.type != other.type or pa.types.is_nested(column.type):
        return False
    same = pc.fill_null(pc.equal(column, other), False)
    both_null = pc.and_(pc.is_null(column), pc.is_null(other))
    return bool(pc.all(pc.or_(same, both_null)).as_py())
