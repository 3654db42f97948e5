"""Every operator on Millpond equals the same query on Spark's RocksDB store.

Rows and state metrics of each batch are equal, over a failed batch and two restarts. A query that
Spark refuses fails with Spark's own error. The end of a test run prints the table of all shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from integration.cases import Build, Case
from integration.harness import providers_to_test
from integration.jvm import MILLPOND, ROCKSDB
from integration.shapes import to_compare
from integration.streams import Input, Run, finish, settings, start
from millpond.operations.inspect.overview import overview
from millpond.storage import open_storage

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
REFERENCE = {_PROVIDER: ROCKSDB, _CHANGELOG: "true"}
# Without Millpond's jar the tests compare the RocksDB store with itself, without changelogs. That
# proves that the cases are deterministic.
MILLPOND_TESTED = MILLPOND in providers_to_test()
CANDIDATE = {_PROVIDER: MILLPOND} if MILLPOND_TESTED else {_PROVIDER: ROCKSDB, _CHANGELOG: "false"}


class _Pair:
    """One case on both providers, with the same input. Each has its own Spark checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path, case: Case) -> None:
        self.spark, self.case = spark, case
        self.inputs = [
            Input(directory / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)
        ]
        self.reference, self.candidate = Run(directory / "reference"), Run(directory / "candidate")
        shared = {**case.conf, _FORMAT: str(case.checkpoint_format)}
        own = case.candidate_conf if MILLPOND_TESTED else {}
        self._sides: list[tuple[Run, Mapping[str, str]]] = [
            (self.reference, {**REFERENCE, **shared}),
            (self.candidate, {**CANDIDATE, **shared, **own}),
        ]

    def add(self, files: slice) -> None:
        """Give both the same part of the input."""
        for source, (_, batches) in zip(self.inputs, self.case.inputs, strict=True):
            for batch in batches[files]:
                source.add(batch)

    def _start(self, build: Build, run: Run, conf: Mapping[str, str], fail_at: int | None) -> Any:
        frame = build([i.stream(self.spark) for i in self.inputs])
        case = self.case
        return start(
            self.spark,
            frame,
            run,
            output_mode=case.mode,
            conf=conf,
            fail_at=fail_at,
            actions=case.actions,
        )

    def run(self, build: Build, *, fail_at: int | None = None) -> None:
        """Run both in parallel, to the end of the input or to the failing batch."""
        queries = [self._start(build, run, conf, fail_at) for run, conf in self._sides]
        for query, (run, _) in zip(queries, self._sides, strict=True):
            finish(query, run, fails=fail_at is not None)

    def refused(self, build: Build) -> None:
        """Check that both end with the case's error."""
        for run, conf in self._sides:
            with pytest.raises(PySparkException) as error:
                finish(self._start(build, run, conf, None), run)
            assert self.case.refused in str(error.value)

    def read(self, options: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Return what Spark's state reader finds in both, sorted, without the time of day."""
        found = []
        for run, conf in self._sides:
            with settings(self.spark, conf):
                reader = self.spark.read.format("statestore").options(**options)
                rows = reader.load(str(run.checkpoint)).collect()
            found.append(sorted(re.sub(r"ttlExpirationMs=\d+", "", repr(row)) for row in rows))
        return found[0], found[1]


@pytest.mark.parametrize("case", to_compare(), ids=lambda c: c.name)
def test_operator_equals_spark(
    spark: SparkSession, tmp_path: Path, case: Case, request: pytest.FixtureRequest
) -> None:
    """Run the query three times from one Spark checkpoint.

    The first run ends in a failed sink. The second does that batch again. The third gets the rest
    of the input. If there are only two runs, the second gets the rest.
    """
    shape = {"batches": 0, "rows": 0, "case": case.name}
    request.node.user_properties.append(("shape", shape))
    pair = _Pair(spark, tmp_path, case)
    pair.add(slice(0, case.first))
    if case.refused and case.later is None:
        pair.refused(case.build)
        return
    pair.run(case.build, fail_at=case.fail_at)
    if case.runs == 3:
        pair.run(case.build)
    pair.add(slice(case.first, None))
    if case.refused and case.later is not None:
        pair.refused(case.later)
        pair.run(case.build)
    else:
        pair.run(case.later or case.build)

    reference, candidate = pair.reference, pair.candidate
    shape |= {"batches": len(reference.rows), "rows": sum(map(len, reference.rows.values()))}
    assert any(reference.rows.values()), "the query wrote no rows, so the test proves nothing"
    assert any(op["numRowsTotal"] > 0 for ops in reference.state.values() for op in ops), (
        "the query kept no state"
    )
    everything = "\n".join(row for rows in reference.rows.values() for row in rows)
    assert [text for text in case.shows if text not in everything] == []
    assert candidate.rows == reference.rows
    assert _state(candidate, case) == _state(reference, case)
    for options in case.reads:
        expected, found = pair.read(options)
        assert expected, f"the state reader finds nothing for {options}"
        assert found == expected
    if MILLPOND_TESTED:
        _every_key_is_in_its_group(candidate, case)


def _state(run: Run, case: Case) -> dict[int, list[dict[str, Any]]]:
    """Return the state metrics of each batch that the case determines."""
    left_out = {"numRowsTotal"} if case.random_keys else set()
    return {
        batch: [{name: value for name, value in op.items() if name not in left_out} for op in ops]
        for batch, ops in run.state.items()
    }


def _every_key_is_in_its_group(run: Run, case: Case) -> None:
    """Check that every store is scalable: all its keys lie in key groups of its partition."""
    stores = [
        store
        for op in overview(open_storage(str(run.checkpoint)), str(run.checkpoint)).operators
        for store in op.stores
    ]
    assert stores
    reasons = [store.unscalable_reason for store in stores if not store.scalable]
    assert case.unscalable in "".join(reasons) if case.unscalable else reasons == []
