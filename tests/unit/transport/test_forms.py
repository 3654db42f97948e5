"""Results on their way from the user's code to the JVM."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import StructType

from millpond.transport.forms import KeyRows, Offsets, Pending
from millpond.transport.pandas_form import PandasForm
from millpond.transport.row_form import RowForm
from millpond.transport.session import Session, size_of
from millpond.transport.wire import Wire

_SETTINGS = {"runner_conf": {}, "max_rows": 10_000, "max_bytes": 1 << 26}


class _Output:
    """Takes results as a form does."""

    def __init__(self) -> None:
        self.pending = Pending()
        self.sent: list[int] = []

    def take(self) -> bytes:
        self.sent += self.pending.entries
        self.pending.sent(8)
        return b""


def test_all_results_go_though_frames_end_between_them() -> None:
    session, output = Session(Wire(io.BytesIO(), io.BytesIO())), _Output()
    session.output = output

    def results() -> Iterator[int]:
        for i in range(1000):
            if i % 30 == 29:  # the key's rows go on in another frame
                session.flush(consumed=True, with_rows=True)
            yield i

    output.pending.add(results(), session, lambda _: 8)
    session.flush(with_rows=True)
    assert output.sent == list(range(1000))


def test_a_sending_without_results_says_nothing_of_their_size() -> None:
    pending = Pending()
    pending.entries.append("large")
    pending.sent(1 << 21)
    assert pending.most == 2
    pending.sent(0)
    assert pending.most == 2


@pytest.mark.parametrize("form", ["row", "pandas"])
def test_large_results_after_small_ones_go_before_they_are_many(form: str) -> None:
    """How many go at once was decided by those before: thousands of rows of a megabyte."""
    schema = StructType().add("n", "long").add("text", "string")
    made: Any = RowForm(schema, {}) if form == "row" else PandasForm(schema, _SETTINGS)
    out = io.BytesIO()
    session = Session(Wire(io.BytesIO(), out))
    session.output = made

    def results(length: int, count: int) -> Iterator[Any]:
        for n in range(count):
            values = {"n": n, "text": "x" * length}
            yield Row(**values) if form == "row" else pd.DataFrame([values])

    made.add(results(1, 3000), session)
    session.flush(with_rows=True)
    out.seek(0)
    out.truncate()
    made.add(results(1 << 20, 12), session)
    assert out.tell() >= 8 << 20
    if form == "pandas":  # one frame may have many rows
        sent = out.tell()
        made.add(iter([pd.DataFrame({"n": range(10), "text": ["x" * (1 << 20)] * 10})]), session)
        assert out.tell() >= sent + (10 << 20)


@pytest.mark.parametrize(
    "value",
    [
        bytearray(1000),
        memoryview(bytearray(1000)),
        {"x" * 500, "y" * 500},
        frozenset(["x" * 1000]),
        {"x" * 1000: 1}.keys(),
        {1: "x" * 1000}.values(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_arrow_takes_counts_with_its_size(value: Any) -> None:
    assert 1000 <= size_of(value) < 1100
    assert 1000 <= size_of((1, value)) < 1100


@pytest.mark.parametrize("joined", [False, True], ids=["in-one", "in-several"])
def test_frames_of_pandas_keep_to_the_bytes_that_spark_allows(joined: bool) -> None:
    """`spark.sql.execution.arrow.maxBytesPerBatch`: a frame had all rows of a key's part."""
    settings = {"runner_conf": {}, "max_rows": 10_000, "max_bytes": 8_000}
    form = PandasForm(StructType().add("n", "long"), settings)
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])  # 16 bytes a row
    keys = form.keys(schema, Offsets([0], [1]))

    def frames() -> KeyRows:
        for part in range(3):
            rows = range(700 * part, 700 * part + 700)
            keys.load(pa.record_batch([[1] * 700, list(rows)], schema=schema))
            yield from keys.rows(0, 700)

    found = list(keys.joined(frames()) if joined else frames())
    lengths = [len(frame) for frame in found]
    assert lengths == ([500] * 4 + [100] if joined else [500, 200] * 3)
    assert [n for frame in found for n in frame["n"]] == list(range(2100))
    assert all(list(frame.index) == list(range(len(frame))) for frame in found)
