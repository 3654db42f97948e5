# SPDX-License-Identifier: Apache-2.0
"""Codec: how many rows a second one core decodes from stored bytes to Arrow, and encodes back.

Part of the savepoint level. It runs in a process of its own:
`python -m benchmarks.bench_codec <rows> <result.json>`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.rows.arrow_types import struct_type
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Atom, Field, Struct
from millpond.state.codec import decode_values
from millpond.state.encoding import encode_values

_BATCH_ROWS = 65_536
_PASSES = 5
_FIXED = tuple(Field(name, Atom(name)) for name in ("long", "integer", "double", "timestamp"))
_WITH_TEXT = (*_FIXED, Field("string", Atom("string")))


def measure(rows: int) -> dict[str, float]:
    """Return medians over some passes, as `<schema>_<way>_rows_per_s`.

    Schema `fixed` has four columns of fixed width; a tenth of one column is null. Schema `text` has
    one more column, of 8 to 22 ASCII characters. One side is a `pyarrow.StructArray`, the other a
    list of `bytes`, an UnsafeRow each.
    """
    figures = {}
    for name, fields in (("fixed", _FIXED), ("text", _WITH_TEXT)):
        schema = FamilySchema(name=name, key=Struct(()), value=Struct(fields), kind="point")
        batches = _batches(schema.value, rows)
        encoded = [encode_values(batch, schema) for batch in batches]
        assert decode_values(encoded[0], schema).equals(batches[0]), (
            "the codec does not give back what it got"
        )
        figures[f"{name}_decode_rows_per_s"] = rows / _median_s(decode_values, encoded, schema)
        figures[f"{name}_encode_rows_per_s"] = rows / _median_s(encode_values, batches, schema)
    return figures


def _batches(schema: Struct, rows: int) -> list[Any]:
    random = np.random.default_rng(1)
    types = list(struct_type(schema))
    found = []
    for start in range(0, rows, _BATCH_ROWS):
        count = min(_BATCH_ROWS, rows - start)
        columns = [
            pa.array(random.integers(-(2**62), 2**62, count)),
            pa.array(
                random.integers(0, 1_000, count).astype(np.int32), mask=random.random(count) < 0.1
            ),
            pa.array(random.random(count)),
            pa.array(random.integers(0, 2**50, count)),
            pa.array([f"user-{number}" for number in random.integers(100, 10**17, count).tolist()]),
        ]
        cast = [column.cast(field.type) for column, field in zip(columns, types, strict=False)]
        found.append(pa.StructArray.from_arrays(cast, fields=types))
    return found


def _median_s(
    codec: Callable[[Any, FamilySchema], Any], parts: list[Any], schema: FamilySchema
) -> float:
    times = []
    for _ in range(_PASSES):
        begin = time.perf_counter()
        for part in parts:
            codec(part, schema)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    Path(sys.argv[2]).write_text(json.dumps(measure(int(sys.argv[1]))))
