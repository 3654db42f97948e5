"""Makes the page `docs/reference/what-works.md` from this file and the query shapes.

A feature without a query shape gets a line in `FEATURES`, with the test that proves it. Then
`make test TEST=tests/unit/test_what_works.py TEST_ARGS=--rewrite` writes the page anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from integration.cases import Case
from integration.shapes import SHAPES

WORKS = "works"
REFUSED_BY_SPARK = (  # for every state store, or for every store that is not Spark's own
    "refused by Spark"
)
NOT_YET = "not yet"
_STATUSES = (WORKS, REFUSED_BY_SPARK, NOT_YET)


@dataclass(frozen=True, slots=True)
class Feature:
    """One line of the page.

    `proof`: `path` or `path::test`; empty if the feature does not work yet. `note`: one sentence or
    nothing.
    """

    section: str
    what: str
    status: str
    proof: str
    note: str = ""

    def __post_init__(self) -> None:
        assert self.status in _STATUSES, self.status


_SHAPES_TEST = "integration/test_operators.py::test_operator_equals_spark"

FEATURES = [
    *(
        Feature(
            "State readers",
            f"`statestore` with {options}",
            WORKS,
            f"integration/test_readers.py::{test}",
        )
        for options, test in (
            ("`batchId`, `storeName`, `operatorId`", "test_state_at_a_batch"),
            ("`joinSide`", "test_state_at_a_batch"),
            ("`stateVarName`, `flattenCollectionTypes`", "test_state_at_a_batch"),
            ("`readRegisteredTimers`", "test_state_at_a_batch"),
            (
                "`snapshotStartBatchId`, `snapshotPartitionId`",
                "test_state_replayed_from_a_snapshot",
            ),
            ("`readChangeFeed`", "test_change_feed"),
        )
    ),
    Feature(
        "State readers",
        "`state-metadata`",
        WORKS,
        "integration/test_readers.py::test_state_metadata",
    ),
    Feature(
        "State readers",
        "from another application, while the query runs",
        WORKS,
        "integration/test_readers.py::test_another_application_reads_while_the_query_runs",
    ),
    Feature(
        "Sessions",
        "`transformWithState` without the extension: an error that names the line to add",
        WORKS,
        "integration/test_extension_missing.py",
    ),
    Feature(
        "Python's transformWithState in bulk",
        "rows, metrics and bytes of the state as by Spark's transport, changed at every restart",
        WORKS,
        "integration/test_python_transport.py",
        "All shapes, values of all types, random programs.",
    ),
    Feature(
        "Python's transformWithState in bulk",
        "user code that raises, dies, or returns what does not fit: as by Spark's transport",
        WORKS,
        "integration/test_python_transport_faults.py",
    ),
    Feature(
        "Python's transformWithState in bulk",
        "large keys, lists, maps and results; several operators; savepoints",
        WORKS,
        "integration/test_python_transport_sizes.py",
    ),
    Feature(
        "Python's transformWithState in bulk",
        "`applyInPandasWithState`: rows, metrics, state and errors as by Spark's worker",
        WORKS,
        "integration/test_python_apply.py",
    ),
    Feature(
        "Python's transformWithState in bulk",
        "steps aside for workers without Millpond, or without the same one, and for another Spark",
        WORKS,
        "integration/test_python_transport_aside.py",
    ),
    Feature("Sessions", "Spark Connect: aggregation", WORKS, "integration/test_connect.py"),
    Feature(
        "Sessions",
        "Spark Connect: `transformWithState` in Python",
        WORKS,
        "integration/test_connect.py",
    ),
    Feature(
        "Joins",
        "state formats 3 and 4 where the user asks for them",
        WORKS,
        "integration/test_joins.py",
    ),
    Feature(
        "Execution",
        "`foreachBatch` with several actions",
        WORKS,
        "integration/test_contract_corners.py",
    ),
    Feature("Execution", "`unloadOnCommit`", WORKS, "integration/test_contract_corners.py"),
    Feature(
        "Execution",
        "snapshots forced by the coordinator",
        WORKS,
        "integration/test_contract_corners.py",
    ),
    Feature(
        "Execution", "tasks that are tried again", WORKS, "integration/test_contract_corners.py"
    ),
    Feature(
        "Execution",
        "several executors: killed, paused, late, speculative",
        WORKS,
        "integration/test_cluster.py",
    ),
    Feature(
        "Execution",
        "micro-batches larger than `memory.budget`",
        WORKS,
        "integration/test_memory_pressure.py",
    ),
    Feature(
        "Execution",
        "real-time mode, and changes between it and other triggers",
        WORKS,
        "integration/test_real_time.py",
        "With Spark 4.3.",
    ),
    Feature(
        "Execution",
        "kills and pauses at random (soak)",
        WORKS,
        "integration/test_soak.py",
        "A minute in CI, half an hour by hand.",
    ),
    *(
        Feature("Savepoints", what, WORKS, f"integration/{proof}", note)
        for what, proof, note in (
            ("a query goes on from a savepoint taken in mid-batch", "test_savepoints.py", ""),
            (
                "what a new job would do with saved state: aggregation, `dropDuplicates`",
                "test_savepoints.py::test_plan_of_a_job",
                "",
            ),
            (
                "what a new job would do with saved state: every form of `transformWithState`,"
                " as it was and with each kind of change",
                "test_plan.py",
                "Compared with what Spark does when the job starts.",
            ),
            (
                "state of Spark's RocksDB and HDFS-backed stores taken over, and handed back",
                "test_migrating.py",
                "Three shapes in every run.",
            ),
            ("state as Arrow tables and as a DataFrame", "test_state_tables.py", ""),
        )
    ),
    *(
        Feature("Single keys", what, WORKS, f"integration/{proof}", note)
        for what, proof, note in (
            ("look-ups of keys, on a local disk and on S3", "test_lookup.py", ""),
            ("look-ups over HTTP, beside a running query", "test_serve.py", ""),
            ("how a key changed from batch to batch", "test_key_history.py", ""),
            ("which batch last wrote a row", "test_blame.py", ""),
            (
                "a key erased from all retained batches and from savepoints",
                "test_erase.py",
                "Killed at every change of a file, and run again.",
            ),
        )
    ),
]

_HEAD = """\
# What works

Generated from the tests (`integration/what_works.py`); do not edit.

## Stateful operators

Every line stands for queries that the tests run on Millpond and on Spark's RocksDB store, with the
same input. The input has a batch whose sink fails after its state was committed, restarts on the
same Spark checkpoint, late rows, an empty file, and keys with nulls, unicode, decimals, bytes and
structs. Rows and state metrics are equal batch for batch. Every key lies in the partition that its
key group belongs to. `make shapes` prints the table of all {count} shapes, `make test` that of
some that are unlike each other, `make test-all` that of the others.

Format is Spark's checkpoint format (`spark.sql.streaming.stateStore.checkpointFormatVersion`),
encoding that of state (`spark.sql.streaming.stateStore.encodingFormat`). *Refused by Spark*: both
stores end with the same error of Spark's own.

| operator | output modes | format | encoding | shapes | status |
|---|---|---|---|---|---|
"""


def _operator_line(operator: str, cases: list[Case]) -> str:
    modes, formats, encodings = (
        ", ".join(sorted(set(values)))
        for values in (
            [c.mode for c in cases],
            [str(c.checkpoint_format) for c in cases],
            [c.encoding for c in cases],
        )
    )
    refused = sum(1 for c in cases if c.refused)
    status = WORKS if not refused else REFUSED_BY_SPARK
    assert refused in (0, len(cases)), f"{operator}: a line either works or does not"
    return f"| {operator} | {modes} | {formats} | {encodings} | {len(cases)} | {status} |\n"


def markdown() -> str:
    """Return the page."""
    by_operator: dict[str, list[Case]] = {}
    for case in SHAPES:
        by_operator.setdefault(case.operator, []).append(case)
    parts = [_HEAD.format(count=len(SHAPES))]
    parts += [_operator_line(operator, cases) for operator, cases in by_operator.items()]
    sections: dict[str, list[Feature]] = {}
    for feature in FEATURES:
        sections.setdefault(feature.section, []).append(feature)
    for section, features in sections.items():
        parts.append(f"\n## {section}\n\n| what | status | proven by | |\n|---|---|---|---|\n")
        for feature in features:
            proof = f"`{feature.proof}`" if feature.proof else ""
            parts.append(f"| {feature.what} | {feature.status} | {proof} | {feature.note} |\n")
    return "".join(parts)
