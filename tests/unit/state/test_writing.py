"""Rows as text: nothing in a value passes for the end of a line, or reaches the terminal."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow as pa

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


def test_json_has_no_character_that_a_terminal_would_obey() -> None:
    """JSON itself escapes only those below the blank."""
    text, out = "\x1b\x7f\x9b31mé\n", io.StringIO()
    assert writing.write_json([_rows([text])], out) == 1
    assert not set(out.getvalue().rstrip("\n")) & set("\x1b\x7f\x9b\n") and "é" in out.getvalue()
    assert json.loads(out.getvalue())["key"] == {"k": text}
