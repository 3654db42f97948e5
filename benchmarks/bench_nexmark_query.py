# SPDX-License-Identifier: Apache-2.0
"""The process of Nexmark's queries on Spark, with one store.

`python -m benchmarks.bench_nexmark_query <spec.json> <result.json>`: `bench_nexmark` runs one for
each contender and query. A spec with `check` runs each of its queries to the end, and compares the
result with that of the batch; one with `rows` compares what Flink got; else one query is measured.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_env import bytes_below
from benchmarks.bench_nexmark_queries import QUERIES, Query
from benchmarks.bench_query import batch, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_HELD = "org.apache.spark.sql.millpond.bench.HeldSource"


def _hold(spark: SparkSession, query: Query, folder: Path) -> None:
    """Read the events into this process, a batch each file."""
    hold: Any = getattr(spark._jvm, _HELD).hold
    for kind in query.kinds:
        for file in sorted((folder / kind).glob("*.parquet")):
            hold(kind, spark.read.parquet(str(file))._jdf)


def _stream(spark: SparkSession, folder: Path, kind: str, *, held: bool) -> DataFrame:
    if held:
        return spark.readStream.format(_HELD).option("name", kind).load()
    path = str(folder / kind)
    schema = spark.read.parquet(path).schema
    # One file a batch and kind, in the order of their times: all contenders have the same batches.
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)


def _started(
    spark: SparkSession,
    query: Query,
    folder: Path,
    checkpoint: Path,
    sink: Any = None,
    *,
    held: bool = False,
) -> StreamingQuery:
    rows = query.stream({kind: _stream(spark, folder, kind, held=held) for kind in query.kinds})
    writer = rows.writeStream.outputMode(query.mode).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", checkpoint.as_uri())
    writer = writer.foreachBatch(sink) if sink else writer.format("noop")
    return writer.start()


def check(spark: SparkSession, query: Query, folder: Path, closed: Path, work: Path) -> int:
    """Return how many rows the stream and the batch have in common: all.

    Args:
        folder: the events.
        closed: the same with the events that close all windows.

    Raises: AssertionError: they differ.
    """
    out = work / f"{query.name}-rows"
    out.mkdir(parents=True, exist_ok=True)

    def take(rows: DataFrame, number: int) -> None:
        # A batch that runs again, after a kill, replaces its rows.
        part = out / f"{number}.part"
        part.write_bytes(pickle.dumps([(_key(query, row), _plain(row)) for row in rows.collect()]))
        part.rename(out / str(number))

    places = dict.fromkeys(query.kinds, closed if query.mode == "append" else folder)
    started = _started(spark, query, next(iter(places.values())), work / query.name, take)
    started.awaitTermination()
    wanted = Counter(_plain(row) for row in _batch(spark, query, folder).collect())
    return _agreed(query, taken(out, replaced=bool(query.key)), wanted)


def taken(out: Path, *, replaced: bool) -> Counter[Any]:
    """Return the rows of the files of all batches.

    Args:
        replaced: the last row of a key counts.
    """
    batches = sorted(int(path.name) for path in out.iterdir() if path.name.isdigit())
    rows = [row for number in batches for row in pickle.loads((out / str(number)).read_bytes())]
    return Counter(dict(rows).values()) if replaced else Counter(row for _, row in rows)


def _key(query: Query, row: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in query.key)


def compare(spark: SparkSession, query: Query, folder: Path, rows: Path) -> int:
    """Return how many rows a stream of Flink and the batch have in common: all.

    Args:
        folder: the events.
        rows: what `bench_nexmark_flink.results` returned.

    Raises: AssertionError: they differ.
    """
    lines = (rows / f"{query.name}.jsonl").read_text().splitlines()
    found = Counter(tuple(json.loads(line)) for line in lines)
    flat = _flat(_batch(spark, query, folder))
    return _agreed(query, found, Counter(tuple(_scalars(row)) for row in flat.collect()))


def _batch(spark: SparkSession, query: Query, folder: Path) -> DataFrame:
    return query.batch({kind: spark.read.parquet(str(folder / kind)) for kind in query.kinds})


def _agreed(query: Query, found: Counter[Any], wanted: Counter[Any]) -> int:
    if found != wanted:
        missing, surplus = wanted - found, found - wanted
        raise AssertionError(
            f"{query.name}: of {wanted.total()} rows of the batch the stream lacks"
            f" {missing.total()} and has {surplus.total()} others: lacks"
            f" {list(missing)[:2]}, has {list(surplus)[:2]}"
        )
    return found.total()


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _flat(rows: DataFrame) -> DataFrame:
    """Return rows with times in ms since 1970, and one row for each struct of an array."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType, TimestampType

    columns = []
    for field in rows.schema:
        within = [field.name]
        if isinstance(field.dataType, ArrayType) and isinstance(
            field.dataType.elementType, StructType
        ):
            return _flat(rows.withColumn(field.name, f.explode(field.name)))
        if isinstance(field.dataType, StructType):
            within = [f"{field.name}.{name}" for name in field.dataType.names]
        for name in within:
            timed = isinstance(rows.select(name).schema[0].dataType, TimestampType)
            columns.append(f.unix_millis(name) if timed else f.col(name))
    return rows.select(*columns)


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _scalars(part)
    else:
        yield value


def measure(
    spark: SparkSession, query: Query, folder: Path, checkpoint: Path, *, held: bool
) -> dict[str, Any]:
    """Return what one run over all files took.

    Args:
        held: the events are in this process's memory before the run begins.
    """
    if held:
        _hold(spark, query, folder)
    began = time.time()
    started = _started(spark, query, folder, checkpoint, held=held)
    started.awaitTermination()
    progress = [json.loads(p.json) for p in started.recentProgress]
    batches = [p for p in progress if p["numInputRows"]]
    measured = [batch(p) for p in batches]
    return {
        "seconds": time.time() - began,
        "per_file": json.loads((folder / "plan.json").read_text())["per_file"],
        "batches": measured,
        "rows_out": sum(max(p["sink"]["numOutputRows"], 0) for p in batches),
        "state_rows": measured[-1]["state_rows"],
        "state_memory_bytes": measured[-1]["state_memory_bytes"],
        "peak_rss_bytes": _peak_rss_bytes(),
        "stored_bytes": bytes_below(checkpoint / "state"),
    }


def _peak_rss_bytes() -> int:
    """Return the largest resident memory of each process of this session, added up."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getsid(int(status.parent.name)) == os.getsid(0):
                total += int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
        except (OSError, IndexError):  # it has ended, or is a dead one that nobody reaped
            continue
    return total


def main(spec_path: str, result_path: str) -> None:
    """Run what a spec says."""
    spec: Mapping[str, Any] = json.loads(Path(spec_path).read_text())
    spark = open_session("millpond-nexmark", spec["conf"])
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 100_000)
    folder = Path(spec["folder"])
    result: dict[str, Any]
    if "rows" in spec:
        rows = Path(spec["rows"])
        result = {name: compare(spark, QUERIES[name], folder, rows) for name in spec["queries"]}
    elif spec["check"]:
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        work, closed = Path(spec["checkpoint"]), Path(spec["closed"])
        result = {}
        for name in spec["queries"]:
            result[name] = check(spark, QUERIES[name], folder, closed, work)
            print(f"{name}: {result[name]} rows", flush=True)
    else:
        (name,) = spec["queries"]
        checkpoint, held = Path(spec["checkpoint"]), bool(spec.get("held"))
        result = measure(spark, QUERIES[name], folder, checkpoint, held=held)
    Path(result_path).write_text(json.dumps(result))
    os._exit(0)  # as in `bench_query`: the end of Spark's store may wait for a minute


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
