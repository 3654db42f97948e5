"""Readers hand on some rows at a time.

The rows in memory have a bound in bytes. Any number of stores opens no more files.
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millpond import savepoint
from millpond.errors import ErrorKind, InvalidInputError
from millpond.format.changelog import ChangelogHeader
from millpond.model.ids import StoreId
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.rows.chunks import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    chunks_of,
    pair_bytes,
    row_batches,
    table_batches,
)
from millpond.rows.encode import encode_rows
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Atom, Field, Struct
from millpond.state.codec import decode_values
from millpond.state.tables import scan_state
from tests.checkpoints import tree
from tests.refusals import refused
from tests.row_checkpoints import VALUE, RowsBuilder

MIB = 1024 * 1024
_AT_A_JUMP = 128 * MIB  # small rows do not tell how large the next ones are


@pytest.mark.parametrize("size", [0, 1, 100, 40_000, MIB])
def test_bounds(size: int) -> None:
    count = min(200_000, 64 * MIB // max(1, size))
    rows = [(number.to_bytes(4, "big"), bytes(0)) for number in range(count)]
    weighed = [(key, size) for key, _ in rows]
    chunks = list(chunks_of(weighed, lambda some: sum(4 + each for _, each in some)))
    assert [row for chunk in chunks for row in chunk] == weighed
    assert all(len(chunk) <= CHUNK_ROWS for chunk in chunks)
    assert all(len(chunk) * (4 + size) <= 2 * CHUNK_BYTES for chunk in chunks)
    assert len(chunks) <= 2 + count // CHUNK_ROWS + count * (4 + size) // (CHUNK_BYTES // 2)


def test_small_rows_then_large_ones() -> None:
    def rows() -> Iterator[tuple[bytes, bytes]]:
        yield from ((b"k", b"v") for _ in range(CHUNK_ROWS))
        yield from ((b"k", bytes(MIB)) for _ in range(64))
        yield from ((b"k", b"v") for _ in range(100))

    sizes = [(len(chunk), pair_bytes(chunk)) for chunk in chunks_of(rows(), pair_bytes)]
    assert sum(count for count, _ in sizes) == CHUNK_ROWS + 164
    assert len(sizes) >= 4 and all(size <= _AT_A_JUMP for _, size in sizes)


class LargeRows(RowsBuilder):
    """A query whose values have one MiB each."""

    def value(self, store: StoreId, version: int) -> bytes:
        (row,) = encode_rows(pa.array([{"n": str(version % 10) * MIB}]), VALUE).to_pylist()
        return b"\0" + bytes(row)


def test_large_rows_are_exported_edited_and_restored_a_few_at_a_time(tmp_path: Path) -> None:
    built = LargeRows(tmp_path / "query", partitions=1, groups=KeyGroups(16, 1)).build(
        80, snapshots=(79,)
    )
    _, batches = scan_state(built.root)
    rows = 0
    for batch in batches:
        assert batch.nbytes <= 2 * CHUNK_BYTES
        rows += batch.num_rows
    assert rows == built.keys(80)
    savepoint.create(built.root, tmp_path / "saved", format="canonical")
    with pq.ParquetFile(tmp_path / "saved/tables/0/default/default/0.parquet") as file:
        assert file.num_row_groups > 2
        for batch in row_batches(file, ["key_bytes", "value_bytes"]):
            assert batch.nbytes <= 2 * CHUNK_BYTES
    seen: list[int] = []

    def look(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows.nbytes)
        return rows

    tracemalloc.start()
    try:
        savepoint.edit(tmp_path / "saved", tmp_path / "edited", function=look)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(seen) <= 2 * CHUNK_BYTES and peak_bytes < 10 * CHUNK_BYTES
    savepoint.restore(tmp_path / "edited", tmp_path / "new", partitions=2)
    assert sum(batch.num_rows for batch in scan_state(tmp_path / "new")[1]) == rows


class LongLists(RowsBuilder):
    """A query whose keys have four KiB each, and lists of 20,000 values."""

    key_type = VALUE

    def key_row(self, number: int) -> dict[str, Any]:
        return {"n": f"{number:04}" * 1024}

    def value(self, store: StoreId, version: int) -> bytes:
        row = super().value(store, version)
        return (len(row).to_bytes(4, "little") + row) * 20_000

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        lists = (ColumnFamily(self.family, 0, "point", multi=True),)
        return replace(super().header(store, version), column_families=lists)


def test_long_lists_are_read_a_few_values_at_a_time(tmp_path: Path) -> None:
    """Each value has the key beside it."""
    built = LongLists(tmp_path / "query", partitions=1, groups=KeyGroups(16, 1)).build(
        2, snapshots=()
    )
    rows = dict[str, int]()
    for batch in scan_state(built.root, batch_rows=10_000, raw=True)[1]:
        assert batch.nbytes <= 4 * CHUNK_BYTES and batch.num_rows <= 10_000
        for count in pc.value_counts(batch.column("key").field("n")).to_pylist():
            rows[count["values"][:4]] = rows.get(count["values"][:4], 0) + count["counts"]
    assert rows == {"0001": 20_000, "0002": 20_000}


@pytest.mark.parametrize("sizes", [[64 * MIB], [MIB + 7 * i for i in range(32)]])
def test_long_rows_of_any_length_are_decoded_beside_few_copies(sizes: list[int]) -> None:
    rows = encode_rows(pa.array([{"n": "x" * size} for size in sizes]), VALUE).to_pylist()
    values = pa.array([b"\0" + bytes(row) for row in rows], pa.binary())
    family = FamilySchema(name="x", key=VALUE, value=VALUE, kind="point")
    tracemalloc.start()
    try:
        decoded = decode_values(values, family)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(text) for text in decoded.field("n").to_pylist()] == sizes
    assert peak_bytes < 4 * sum(sizes)


@pytest.mark.parametrize("directory", [False, True])
def test_the_table_of_an_edit_is_read_a_few_rows_at_a_time(tmp_path: Path, directory: bool) -> None:
    """The table is one row group, as other programs write it."""
    schema = pa.schema(
        [("value", pa.struct([("n", pa.string())])), ("other", pa.int8()), ("key", pa.int32())]
    )
    rows = [{"value": {"n": str(k % 10) * MIB}, "other": 1, "key": k} for k in range(64)]
    path = tmp_path / "rows.parquet"
    if directory:
        (tmp_path / "rows").mkdir()
        pq.write_table(pa.Table.from_pylist(rows[:1], schema=schema), tmp_path / "rows/0.parquet")
        path = tmp_path / "rows/1.parquet"
    pq.write_table(
        pa.Table.from_pylist(rows, schema=schema), path, compression="none", use_dictionary=False
    )
    before, keys = pa.total_allocated_bytes(), []
    for batch in table_batches(str(path.parent if directory else path), ("key", "value")):
        assert batch.nbytes <= 2 * CHUNK_BYTES
        keys += batch.column("key").to_pylist()
        assert pa.total_allocated_bytes() - before <= 6 * CHUNK_BYTES
    assert keys == [0] * directory + list(range(64))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        table_batches(str(tmp_path / "nothing"), ("key",))


@pytest.mark.parametrize("older", [True, False])
def test_times_that_spark_writes_are_of_utc(tmp_path: Path, older: bool) -> None:
    """Arrow reads Parquet's type INT96, in which Spark may write a `timestamp`, as times without a
    zone. So they were refused. Those after the year 2262 began again in 1677.
    """
    times = [dt.datetime(1, 1, 2), dt.datetime(2026, 1, 31, 12, 0, 0, 1), dt.datetime(9999, 1, 1)]

    def table(zone: dt.tzinfo | None) -> pa.Table:
        time = pa.timestamp("us", None if zone is None else "UTC")
        inner = pa.struct([("n", pa.int32()), ("t", time)])
        columns = [("t", time), ("s", pa.string()), ("l", pa.list_(inner))]
        columns += [("m", pa.map_(pa.string(), time)), ("last", time)]
        schema = pa.schema([("key", time), ("other", time), ("value", pa.struct(columns))])
        rows = []
        for at in (time.replace(tzinfo=zone) for time in times):
            value = {"t": at, "s": "x", "l": [{"n": 1, "t": at}, None, {"n": 2, "t": None}]}
            value |= {"m": [("a", at), ("b", None)], "last": None if at.year == 1 else at}
            rows.append({"key": at, "other": at, "value": value})
        return pa.Table.from_pylist(rows, schema=schema)

    path = tmp_path / "rows.parquet"
    pq.write_table(table(None), path, use_deprecated_int96_timestamps=older)
    found = pa.Table.from_batches(table_batches(str(path), ("key", "value")))
    expected = table(dt.timezone.utc if older else None).select(["key", "value"])
    assert found.to_pylist() == expected.to_pylist()
    assert found.column("key").type == expected.column("key").type


_DAY, _TIME, _WALL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
_EARLY_DAY, _FIRST_DAY = -141_428, -141_427  # 1582-10-14 and the day after, in days since 1970
_EARLY_TIME, _FIRST_TIME = -2_208_988_800_000_001, -2_208_988_800_000_000  # around 1900, in us
_SPARK = "org.apache.spark."
_OLD = {f"{_SPARK}version": "4.0.1", f"{_SPARK}legacyDateTime": ""}
_OLD_INT96 = {f"{_SPARK}version": "4.0.1", f"{_SPARK}legacyINT96": ""}


@pytest.mark.parametrize(
    ("footer", "kind", "int96", "number", "is_refused"),
    [
        (_OLD, _DAY, False, _EARLY_DAY, True),
        (_OLD, _DAY, False, _FIRST_DAY, False),
        (_OLD, _TIME, False, _EARLY_TIME, True),
        (_OLD, _TIME, False, _FIRST_TIME, False),
        (_OLD, pa.timestamp("ms", "UTC"), False, _EARLY_TIME // 1000, True),
        (_OLD, _WALL, False, _EARLY_TIME, False),  # as old as this type no file is
        (_OLD, _TIME, True, _EARLY_TIME, False),
        (_OLD_INT96, _TIME, True, _EARLY_TIME, True),
        (_OLD_INT96, _TIME, True, _FIRST_TIME, False),
        (_OLD_INT96, _TIME, False, _EARLY_TIME, False),
        (_OLD_INT96, _DAY, False, _EARLY_DAY, False),
        ({f"{_SPARK}version": "2.4.8"}, _DAY, False, _EARLY_DAY, True),
        ({f"{_SPARK}version": "2.4.8"}, _TIME, True, _EARLY_TIME, True),
        ({f"{_SPARK}version": "3.0.3"}, _TIME, False, _EARLY_TIME, False),
        ({f"{_SPARK}version": "3.0.3"}, _TIME, True, _EARLY_TIME, True),
        ({f"{_SPARK}version": "3.1.0"}, _TIME, True, _EARLY_TIME, False),
        ({f"{_SPARK}version": "10.0.0"}, _DAY, False, _EARLY_DAY, False),
        ({}, _DAY, False, _EARLY_DAY, False),
        ({}, _TIME, True, _EARLY_TIME, False),
    ],
)
def test_days_of_an_earlier_calendar_are_refused(
    tmp_path: Path,
    footer: dict[str, str],
    kind: pa.DataType,
    int96: bool,
    number: int,
    is_refused: bool,
) -> None:
    """Spark's own readers put them right, as the footer tells. Arrow does not look: they became
    other days, and nobody was told.
    """
    plain = pa.int32() if kind == _DAY else pa.int64()
    late, early = (pa.array([n, None], plain).view(kind) for n in (0, number))
    texts, ends = pa.array(["a", "b"]), pa.array([0, 1, 2], pa.int32())

    def in_struct(column: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([texts, late, column], names=["s", "late", "at"])

    columns = {
        "at": early,
        "value.at": in_struct(early),
        "value.list.element.at": pa.ListArray.from_arrays(ends, in_struct(early)),
        "value.key_value.value": pa.MapArray.from_arrays(ends, texts, early),
    }
    for path, column in columns.items():
        name = path.partition(".")[0]
        table = pa.table({"late": late, name: column}).replace_schema_metadata(footer)
        file = tmp_path / f"{path}.parquet"
        pq.write_table(table, file, use_deprecated_int96_timestamps=int96)
        if not is_refused:
            assert sum(batch.num_rows for batch in table_batches(str(file))) == 2
            continue
        error = refused(ErrorKind.INVALID_ARGUMENT, list, table_batches(str(file)))
        assert str(file) in error.message and f"column {path!r}" in error.message
        assert "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED" in error.hint
        assert "spark.sql.parquet.int96RebaseModeInWrite=CORRECTED" in error.hint


class _Days(RowsBuilder):
    key_type = Struct((Field("k", Atom("date")),))

    def key_row(self, number: int) -> dict[str, Any]:
        return {"k": dt.date.fromordinal(700_000 + number)}


def test_an_edit_with_days_of_an_earlier_calendar_leaves_nothing(tmp_path: Path) -> None:
    built = _Days(tmp_path / "query", groups=KeyGroups(16, 2)).build(2, snapshots=())
    savepoint.create(built.root, tmp_path / "saved")
    rows = [{"key": {"k": dt.date(year, 1, 1)}, "value": {"n": "x"}} for year in (2000, 1500)]
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(_OLD), tmp_path / "t.parquet")
    before = tree(tmp_path)
    refused(
        ErrorKind.INVALID_ARGUMENT,
        lambda: savepoint.edit(
            tmp_path / "saved",
            tmp_path / "edited",
            table=table_batches(str(tmp_path / "t.parquet"), ("key", "value")),
        ),
    )
    assert tree(tmp_path) == before and not (tmp_path / "edited").exists()


def test_an_edit_opens_no_file_for_each_partition(tmp_path: Path) -> None:
    built = RowsBuilder(tmp_path / "query", partitions=64, groups=KeyGroups(64, 64)).build(
        2, snapshots=()
    )
    savepoint.create(built.root, tmp_path / "saved")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 32, hard))
    try:
        report = savepoint.edit(tmp_path / "saved", tmp_path / "edited", function=lambda rows: rows)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert report.rows_after == report.rows_before == 128
    assert savepoint.verify(tmp_path / "edited").ok
