"""Which Arrow type stands for which Spark type. Needs the extra `tools`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millpond.spark.types import Array, Atom, Decimal, Map, SparkType, Struct

_ATOMS: dict[str, Any] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "date": pa.date32(),
    "float": pa.float32(),
    "year_month_interval": pa.int32(),  # in months; Parquet and pandas have no such type
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "day_time_interval": pa.duration("us"),
    "void": pa.null(),
    "string": pa.string(),
    "binary": pa.binary(),
    "geometry": pa.binary(),
    "variant": pa.struct([("value", pa.binary()), ("metadata", pa.binary())]),
    "calendar_interval": pa.struct(
        [("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())]
    ),
}


def arrow_type(kind: SparkType) -> Any:
    """Return the Arrow type of a Spark type."""
    if isinstance(kind, Atom):
        return _ATOMS[kind.name]
    if isinstance(kind, Decimal):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, Array):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, Map):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    return struct_type(kind)


def struct_type(kind: Struct) -> Any:
    """Return the Arrow type of a Spark struct."""
    return pa.struct([pa.field(name, arrow_type(inner)) for name, inner in kind.columns])
