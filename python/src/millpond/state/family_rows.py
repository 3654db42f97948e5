"""Single rows of one column family as JSON values. Needs the extra `tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from millpond.model.json_fields import ColumnFamily
from millpond.query.image import Image, operator_info
from millpond.query.row_source import RowSource
from millpond.rows.readable import readable
from millpond.spark.state_schemas import FamilySchema
from millpond.state.codec import check_supported, decode_keys, decode_lists, decode_values
from millpond.state.selection import every_schema
from millpond.state.writing import plain


@dataclass(frozen=True, slots=True)
class FamilyRows:
    """How the rows of a column family are read."""

    family: ColumnFamily | None  # None: this state has no row of it
    schema: FamilySchema | None  # None: Spark describes it no more, because the job has dropped it

    @staticmethod
    def of(image: Image, source: RowSource, place: tuple[int, str, str]) -> FamilyRows:
        """Return how to read the column family `place`: operator, store, name."""
        operator, store, name = place
        families = [
            family
            for rows in source.stores()
            if (rows.store.operator, rows.store.name) == (operator, store)
            for family in rows.families
            if family.name == name
        ]
        if not families:
            return FamilyRows(None, None)
        info = operator_info(image, operator)
        schema = every_schema(image, operator, info, store).get(name)
        if schema is not None:
            check_supported(families[0], schema)
        return FamilyRows(families[0], schema)

    def described_like(self, other: FamilyRows) -> FamilyRows:
        """Return it with the columns of another state of the query if its own schemas lack them."""
        return self if self.schema is not None else replace(self, schema=other.schema)

    def keys(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Return what each key says; its bytes if nothing tells its columns."""
        if self.family is None or not keys:
            return {}
        if self.schema is None:
            return {key: plain(key) for key in keys}
        found = decode_keys(list(keys), self.schema, place_bytes=0, encoding=self.family.encoding)
        return dict(zip(keys, _plain(found), strict=True))

    def values(self, rows: Mapping[bytes, bytes]) -> dict[bytes, Any]:
        """Return what the value of each key says. As `keys`."""
        if self.family is None or not rows:
            return {}
        if self.schema is None:
            return {key: plain(value) for key, value in rows.items()}
        decode = decode_lists if self.family.multi else decode_values
        found = decode(list(rows.values()), self.schema, encoding=self.family.encoding)
        return dict(zip(rows, _plain(found), strict=True))


def _plain(column: Any) -> list[Any]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return [plain(value) for value in readable(array).to_pylist(maps_as_pydicts=None)]
