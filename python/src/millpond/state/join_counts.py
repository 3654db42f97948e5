"""How many rows a key of a join has. In the state formats 1 to 3 the join keeps a row by the key
and a number, from 0 on, and beside that the count of the rows of each key. Pure.
"""

from __future__ import annotations

from millpond.spark.state_schemas import FamilySchema
from millpond.state.encoding import sorted_by
from millpond.state.second_records import JOIN

_ROWS, _COUNTS = "-keyWithIndexToValue", "-keyToNumValues"


def counted_by(operator: str, store: str, family: str) -> tuple[str, str] | None:
    """Return the store and the column family with the count of the rows of each key; None: the
    column family has no rows with numbers.

    Args:
        operator: its name.
    """
    if operator != JOIN or not (store.endswith(_ROWS) or family.endswith(_ROWS)):
        return None
    return _counts_of(store), _counts_of(family)


def enough_columns(operator: str, store: str, schema: FamilySchema) -> int:
    """Return how many first columns of a key find all keys with them; 0 if no fewer than all do.

    Args:
        operator: its name.
    """
    if counted_by(operator, store, schema.name) is not None:
        return len(schema.key.fields) - 1
    return sorted_by(schema)


def _counts_of(name: str) -> str:
    return name.removesuffix(_ROWS) + _COUNTS if name.endswith(_ROWS) else name
