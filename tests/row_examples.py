"""Random schemas of Spark, and rows for them. Tests with and without a JVM use them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millpond.rows.arrow_types import struct_type
from millpond.spark.types import Array, Atom, Decimal, Field, Map, SparkType, Struct

_DAYS = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))


def _bits(count: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (count - 1)), 2 ** (count - 1) - 1)


_ATOMS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": _bits(8),
    "short": _bits(16),
    "integer": _bits(32),
    "long": _bits(64),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "date": _DAYS,
    "timestamp": _TIMES.map(lambda t: t.replace(tzinfo=dt.timezone.utc)),
    "timestamp_ntz": _TIMES,
    "day_time_interval": st.timedeltas(dt.timedelta(days=-(10**6)), dt.timedelta(days=10**6)),
    "year_month_interval": _bits(32),
    "string": st.text(st.characters(codec="utf-8"), max_size=20),
    "binary": st.binary(max_size=20),
    "void": st.none(),
    "geometry": st.binary(max_size=11),
    "variant": st.fixed_dictionaries(
        {"value": st.binary(max_size=11), "metadata": st.binary(max_size=11)}
    ),
    "calendar_interval": st.fixed_dictionaries(
        {"months": _bits(32), "days": _bits(32), "microseconds": _bits(64)}
    ),
}
ALL_ATOMS = tuple(_ATOMS)

_DECIMALS = st.integers(1, 38).flatmap(lambda p: st.builds(Decimal, st.just(p), st.integers(0, p)))


def types(atoms: Sequence[str] = ALL_ATOMS) -> st.SearchStrategy[SparkType]:
    """Draw types of Spark, nested some levels deep."""
    leaf = st.one_of(st.sampled_from([Atom(name) for name in atoms]), _DECIMALS)
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(Array, inner),
            st.builds(Map, inner.filter(lambda k: k != Atom("void")), inner),
            structs(inner, 3),
        ),
        max_leaves=5,
    )


def structs(inner: st.SearchStrategy[SparkType], most: int) -> st.SearchStrategy[Struct]:
    """Draw structs of up to `most` fields."""
    return st.lists(inner, min_size=1, max_size=most).map(
        lambda kinds: Struct(tuple(Field(f"c{i}", kind) for i, kind in enumerate(kinds)))
    )


def schemas(atoms: Sequence[str] = ALL_ATOMS) -> st.SearchStrategy[Struct]:
    """Draw schemas of rows.

    A few have more fields than one word of null bits holds.
    """
    wide = st.lists(st.sampled_from([Atom(name) for name in atoms]), min_size=62, max_size=130)
    return st.one_of(
        structs(types(atoms), 6),
        structs(types(atoms), 6),
        structs(types(atoms), 6),
        wide.map(lambda kinds: Struct(tuple(Field(f"c{i}", kind) for i, kind in enumerate(kinds)))),
    )


def values(kind: SparkType, *, null: bool = True) -> st.SearchStrategy[Any]:
    """Draw values of a type as `pyarrow.array` takes them. Some are None."""
    if isinstance(kind, Decimal):
        top = 10**kind.precision - 1
        some: st.SearchStrategy[Any] = st.integers(-top, top).map(
            lambda v: PyDecimal((int(v < 0), tuple(map(int, str(abs(v)))), -kind.scale))
        )
    elif isinstance(kind, Array):
        some = st.lists(values(kind.element), max_size=4)
    elif isinstance(kind, Map):
        some = st.lists(st.tuples(values(kind.key, null=False), values(kind.value)), max_size=3)
    elif isinstance(kind, Struct):
        some = st.fixed_dictionaries({field.name: values(field.type) for field in kind.fields})
    else:
        some = _ATOMS[kind.name]
    return st.one_of(st.none(), some) if null else some


@st.composite
def tables(
    draw: st.DrawFn, *, atoms: Sequence[str] = ALL_ATOMS, most: int = 12
) -> tuple[Struct, list[dict[str, Any]]]:
    """Draw a schema, and rows of it."""
    schema = draw(schemas(atoms))
    return schema, draw(st.lists(values(schema, null=False), max_size=most))


def arrow(schema: Struct, rows: list[dict[str, Any]]) -> Any:
    """Return the rows as a `pyarrow.StructArray`."""
    return pa.array(rows, struct_type(schema))
