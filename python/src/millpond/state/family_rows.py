"""Single rows of one column family as JSON values. Needs the extra `tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millpond.model.json_fields import ColumnFamily
from millpond.query.image import Image, operator_info
from millpond.query.row_source import RowSource
from millpond.rows.readable import readable
from millpond.spark.state_schemas import FamilySchema
from millpond.state.codec import check_supported, decode_keys, decode_lists, decode_values
from millpond.state.selection import family_schemas
from millpond.state.writing import plain


@dataclass(frozen=True, slots=True)
class FamilyRows:
    """How the rows of a column family are read."""

    family: ColumnFamily | None  # None: this state has no row of it
    schema: FamilySchema | None

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
        schemas = family_schemas(image, operator, info, store)
        (schema,) = [schema for schema in schemas if schema.name == name]
        check_supported(families[0], schema)
        return FamilyRows(families[0], schema)

    def keys(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Return what each key says."""
        if self.family is None or self.schema is None or not keys:
            return {}
        found = decode_keys(list(keys), self.schema, place_bytes=0, encoding=self.family.encoding)
        return dict(zip(keys, _plain(found), strict=True))

    def values(self, rows: Mapping[bytes, bytes]) -> dict[bytes, Any]:
        """Return what the value of each key says."""
        if self.family is None or self.schema is None or not rows:
            return {}
        decode = decode_lists if self.family.multi else decode_values
        found = decode(list(rows.values()), self.schema, encoding=self.family.encoding)
        return dict(zip(rows, _plain(found), strict=True))


def _plain(column: Any) -> list[Any]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return [plain(value) for value in readable(array).to_pylist(maps_as_pydicts=None)]
