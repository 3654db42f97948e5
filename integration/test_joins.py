"""A query gets the format of join state that it asks for.

`join_cases` shows that the results are equal in each format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.cases import CLICKS, EVENTS, VIEWS
from integration.depth import quick_first
from integration.harness import millponds_own
from integration.join_cases import STATE_FORMAT, by_time
from integration.jvm import IS_SPARK_4_2, MILLPOND, ROCKSDB
from integration.streams import Input, Run, finish, start
from millpond.format.changelog import read_header
from millpond.operations.inspect.overview import overview
from millpond.storage.local import LocalStorage

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STORES = {
    f"{side}-{name}"
    for side in ("left", "right")
    for name in ("keyToNumValues", "keyWithIndexToValue")
}
_FAMILIES = {
    3: _STORES,
    4: {
        f"{side}-{name}"
        for side in ("left", "right")
        for name in ("keyWithTsToValues", "tsWithKey")
    },
}


class _Job:
    """A join of clicks and views, with one Spark checkpoint."""

    def __init__(
        self, spark: SparkSession, directory: Path, how: str, conf: dict[str, str]
    ) -> None:
        self.spark, self.how, self.conf = spark, how, conf
        self.inputs = [Input(directory / f"input-{i}", EVENTS) for i in range(2)]
        self.run = Run(directory / "checkpoint")

    def add(self, files: slice) -> None:
        for source, batches in zip(self.inputs, (CLICKS, VIEWS), strict=True):
            for batch in batches[files]:
                source.add(batch)

    def go(self, *, fail_at: int | None = None, state_format: int | None = None) -> None:
        conf = self.conf if state_format is None else {**self.conf, STATE_FORMAT: str(state_format)}
        frame = by_time(self.how)([i.stream(self.spark) for i in self.inputs])
        query = start(self.spark, frame, self.run, output_mode="append", conf=conf, fail_at=fail_at)
        finish(query, self.run, fails=fail_at is not None)

    def pinned(self) -> dict[str, Any]:
        """Return the settings in the first entry of the offset log."""
        conf: dict[str, Any] = json.loads(
            (self.run.checkpoint / "offsets" / "0").read_text().splitlines()[1]
        )["conf"]
        return conf


@contextmanager
def _spark_testing(spark: SparkSession) -> Iterator[None]:
    """Let Spark write schema files of version 1. Join state of format 1 begins with them."""
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    system.setProperty("spark.testing", "true")
    try:
        yield
    finally:
        system.clearProperty("spark.testing")


@millponds_own
@pytest.mark.parametrize("version", quick_first([3, 2, 4]))
def test_a_query_gets_the_format_it_asks_for(
    spark: SparkSession, tmp_path: Path, version: int
) -> None:
    job = _Job(spark, tmp_path, "leftOuter", {_PROVIDER: MILLPOND, STATE_FORMAT: str(version)})
    job.add(slice(0, 2))
    if version == 4 and IS_SPARK_4_2:
        with pytest.raises(
            StreamingQueryException, match="State format version 4 is under development"
        ):
            job.go()
        return
    job.go()
    assert job.pinned()[STATE_FORMAT] == str(version)
    # A changed setting does not count. The query keeps its first format.
    job.add(slice(2, None))
    job.go(state_format=3 if version == 2 else 2)
    state = job.run.checkpoint / "state" / "0"
    (operator,) = overview(LocalStorage(str(job.run.checkpoint)), str(job.run.checkpoint)).operators
    assert [(s.name, s.unscalable_reason) for s in operator.stores if not s.scalable] == []
    if version == 2:
        assert (state / "_metadata" / "metadata").is_file()
        assert {(s.partition, s.name) for s in operator.stores} == {
            (p, name) for p in range(2) for name in _STORES
        }
        return
    assert sorted((state / "_metadata" / "v2").iterdir())
    assert {(s.partition, s.name) for s in operator.stores} == {(p, "default") for p in range(2)}
    newest = max(int(path.stem) for path in state.rglob("*.changelog"))
    for partition in range(2):
        with (state / str(partition) / f"{newest}.changelog").open("rb") as file:
            families = {family.name for family in read_header(file).column_families}
        assert families - {"default"} == _FAMILIES[version]


@pytest.mark.deep
def test_format_1_goes_on_where_spark_lets_it(spark: SparkSession, tmp_path: Path) -> None:
    """A query that an older Spark began in format 1 goes on. A new query cannot have format 1."""
    runs = []
    for name, provider in (("reference", ROCKSDB), ("candidate", MILLPOND)):
        job = _Job(spark, tmp_path / name, "inner", {_PROVIDER: provider, STATE_FORMAT: "1"})
        job.add(slice(0, 3))
        with pytest.raises(StreamingQueryException, match="Unsupported schema writer version: 1"):
            job.go()
        with _spark_testing(spark):
            job.go(fail_at=1)
        job.go()
        job.add(slice(3, None))
        job.go(state_format=2)
        assert job.pinned()[STATE_FORMAT] == "1"
        runs.append(job.run)
    reference, candidate = runs
    assert any(reference.rows.values())
    assert candidate.rows == reference.rows
    assert candidate.state == reference.state


@millponds_own
def test_nothing_of_sparks_own_provider_is_used(spark: SparkSession) -> None:
    """Millpond's provider extends Spark's for one check only. It overrides every method."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    ours, parent = (loader.loadClass(name) for name in (MILLPOND, ROCKSDB))
    if not parent.isAssignableFrom(ours):
        pytest.skip("this Spark has no such check, and Millpond's provider no such parent")
    logging = {
        m.getName() for m in loader.loadClass("org.apache.spark.internal.Logging").getMethods()
    }
    inherited = set()
    for method in parent.getDeclaredMethods():
        static = jvm.java.lang.reflect.Modifier.isStatic(method.getModifiers())
        private = jvm.java.lang.reflect.Modifier.isPrivate(method.getModifiers())
        if not (static or private or "$" in method.getName()):
            found = ours.getMethod(method.getName(), method.getParameterTypes())
            if found.getDeclaringClass().getName() == ROCKSDB:
                inherited.add(method.getName())
    assert inherited - logging == {
        *(
            "unloaded",
            "maintenanceLock",
            "setUnloaded",
        ),  # the class that mixes in the contract has the contract's own state
        "createRocksDB",  # only the parent's lazy field calls it, and Millpond overrides that field
        "sparkConf",
    }
