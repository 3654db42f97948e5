"""Every operator on Millpond against the same query on Spark's RocksDB store.

Equal batch for batch, rows and state metrics, over a failed batch and two restarts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration import join_cases, operator_cases
from integration.harness import providers_to_test
from integration.jvm import MILLPOND, ROCKSDB
from integration.operator_cases import Case
from integration.streams import Input, Run, finish, start

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
REFERENCE = {_PROVIDER: ROCKSDB, _CHANGELOG: "true"}
# Without Millpond's jar the RocksDB store is compared with itself without changelogs: that proves the cases
# deterministic.
CANDIDATE = {_PROVIDER: MILLPOND} if MILLPOND in providers_to_test() else {_PROVIDER: ROCKSDB, _CHANGELOG: "false"}


@pytest.mark.parametrize("case", [*operator_cases.CASES, *join_cases.CASES], ids=lambda c: c.name)
def test_operator_equals_spark(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    """Three runs from one checkpoint.

    The first ends in a failed sink, the second does that batch again, the third gets the rest of the input.
    """
    inputs = [Input(tmp_path / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    runs = [Run(tmp_path / "reference"), Run(tmp_path / "candidate")]
    confs = [{**c, **case.conf, _FORMAT: str(case.checkpoint_format)} for c in (REFERENCE, CANDIDATE)]
    batches = [rows for _, rows in case.inputs]

    def both(*, fail_at: int | None = None) -> None:
        queries = [
            start(
                spark,
                case.build([i.stream(spark) for i in inputs]),
                run,
                output_mode=case.mode,
                conf=conf,
                fail_at=fail_at,
            )
            for run, conf in zip(runs, confs, strict=True)
        ]
        for query, run in zip(queries, runs, strict=True):
            finish(query, run, fails=fail_at is not None)

    for source, rows in zip(inputs, batches, strict=True):
        for batch in rows[: case.first]:
            source.add(batch)
    both(fail_at=case.fail_at)
    both()
    for source, rows in zip(inputs, batches, strict=True):
        for batch in rows[case.first :]:
            source.add(batch)
    both()

    reference, candidate = runs
    assert any(reference.rows.values()), "the query put out nothing: it proves nothing"
    assert any(op["numRowsTotal"] > 0 for ops in reference.state.values() for op in ops), "the query kept no state"
    assert candidate.rows == reference.rows
    assert candidate.state == reference.state
