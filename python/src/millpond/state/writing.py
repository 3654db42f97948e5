"""Writes rows of state for people and for programs: a text table, CSV, JSON lines, Parquet.

Needs the extra `tools`.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.rows.nested import is_number
from millpond.rows.readable import readable_batch, readable_rows

# JSON may have them as they are, and a terminal would obey them.
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


class Writable(Protocol):
    """Takes text, as a file does."""

    def write(self, text: str, /) -> int: ...


def flat_columns(batch: Any) -> list[tuple[str, Any]]:
    """Return the columns of a `pyarrow.RecordBatch`, with the structs `key` and `value` split into
    columns such as `key.k` and `value.count`.
    """
    columns: list[tuple[str, Any]] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name in ("key", "value") and pa.types.is_struct(field.type):
            names = [f"{field.name}.{inner.name}" for inner in field.type]
            columns += zip(names, column.flatten(), strict=True)
        else:
            columns.append((field.name, column))
    return columns


def plain(value: Any) -> Any:
    """Return a value of Arrow's as JSON has it: bytes as base64, decimals as text, times in ISO
    8601, durations in seconds.
    """
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case Decimal():
            return str(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value.total_seconds()
        case dict():
            return {name: plain(inner) for name, inner in value.items()}
        case tuple() | list():
            return [plain(inner) for inner in value]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)  # JSON has no such numbers
    return value


def cell(value: Any) -> str:
    """Return a value as a cell of a text table or of CSV: null is empty, nested values are JSON."""
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def write_json(batches: Iterable[Any], out: Writable, *, ascii: bool = False) -> int:
    """Write a JSON object on each line. Return how many.

    Args:
        ascii: escape all other characters: `out` may lack them.
    """
    count = 0
    for batch in batches:
        for row in json_rows([batch]):
            text = json.dumps(row, ensure_ascii=ascii, separators=(",", ":"))
            out.write(text.translate(_CONTROLS) + "\n")
            count += 1
    return count


def json_rows(batches: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows as JSON has them."""
    return [plain(row) for row in readable_rows(batches)]


def write_csv(schema: Any, batches: Iterable[Any], out: Writable) -> int:
    """Write a head, then a line for each row. Return how many rows."""
    writer = csv.writer(_Lines(out), lineterminator="\r\n")
    writer.writerow([name for name, _ in flat_columns(_empty(schema))])
    count = 0
    for batch in batches:
        for row in zip(
            *(column.to_pylist() for _, column in flat_columns(readable_batch(batch))), strict=True
        ):
            writer.writerow([cell(value) for value in row])
            count += 1
    return count


class _Lines:
    """Ends lines by a line feed. If a writer of csv does that itself, it leaves a text with a
    carriage return bare, in some versions of Python.
    """

    def __init__(self, out: Writable) -> None:
        self._out = out

    def write(self, line: str) -> int:
        """Write a line that ends with both."""
        return self._out.write(line[:-2] + "\n")


class Table(Protocol):
    """A function that prints a table as text."""

    def __call__(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Iterable[int] = (),
        indent: str = "",
    ) -> None: ...


def write_table(schema: Any, batches: Iterable[Any], table: Table) -> int:
    """Give `table` the head and the rows, numbers aligned right. Return how many rows."""
    names = [name for name, _ in flat_columns(_empty(schema))]
    numbers = [i for i, (_, c) in enumerate(flat_columns(_empty(schema))) if is_number(c.type)]
    rows: list[list[str]] = []
    for batch in batches:
        columns = [column.to_pylist() for _, column in flat_columns(readable_batch(batch))]
        rows += [[cell(value) for value in row] for row in zip(*columns, strict=True)]
    table(names, rows, right=numbers)
    return len(rows)


def write_parquet(schema: Any, batches: Iterable[Any], path: str) -> int:
    """Write a Parquet file, batch by batch. Return how many rows.

    Parquet has no structs without fields: a key or a value without columns is left out.
    """
    count = 0
    fields = [f for f in schema if not pa.types.is_struct(f.type) or f.type.num_fields]
    with pq.ParquetWriter(path, pa.schema(fields), compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch.select([field.name for field in fields]))
            count += batch.num_rows
    return count


def limited(batches: Iterable[Any], limit: int | None) -> Iterable[Any]:
    """Yield batches until there are `limit` rows in all; None: yield all."""
    for batch in batches:
        if limit is None:
            yield batch
            continue
        if batch.num_rows >= limit:
            yield batch.slice(0, limit)
            return
        limit -= batch.num_rows
        yield batch


def _empty(schema: Any) -> Any:
    return pa.RecordBatch.from_pylist([], schema=schema)
