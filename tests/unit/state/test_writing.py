"""Rows as text: nothing in a value passes for the end of a line, or reaches the terminal."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow as pa
import pytest

from millpond.state import writing

TEXTS = ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "plain", ""]


def _rows(texts: list[str]) -> Any:
    keys = pa.array([{"k": text} for text in texts], pa.struct([("k", pa.string())]))
    return pa.RecordBatch.from_arrays([keys], names=["key"])


def test_every_text_comes_back_from_csv() -> None:
    """Python 3.11.2 quotes a lone carriage return only where lines end with it."""
    batch, out = _rows(TEXTS), io.StringIO()
    assert writing.write_csv(batch.schema, [batch], out) == len(TEXTS)
    written = out.getvalue()
    assert written.startswith("key.k\n") and '"a\rb"\n' in written
    found = list(csv.reader(io.StringIO(written, newline="")))[1:]
    assert [row[0] if row else "" for row in found] == TEXTS


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\rb", "a\\rb"), ("a\nb", "a\\nb"), ("\x1b[31mred", "\\x1b[31mred"), ("é\t", "é\\t")],
)
def test_a_table_shows_what_a_terminal_would_obey(text: str, shown: str) -> None:
    batch, lines = _rows([text]), []
    writing.write_table(batch.schema, [batch], lambda head, rows, **_: lines.extend(rows))
    assert lines == [[shown]]
