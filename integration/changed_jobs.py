"""Saves a query, and starts a changed job from the savepoint: what Spark then really does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.cases import Case
from integration.jvm import MILLPOND
from integration.streams import Input, Run, finish, start
from millpond import savepoint

CONF = {
    "spark.sql.streaming.stateStore.providerClass": MILLPOND,
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}
_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9.]+)\]")


def conditions(text: str) -> set[str]:
    """Return Spark's error conditions in a text."""
    return set(_CONDITION.findall(text)) - {"STREAM_FAILED"}


def saved(
    spark: SparkSession, work: Path, case: Case, files: int
) -> tuple[Path, list[Input], dict[str, str]]:
    """Run a case over its first files, and save it. Return the savepoint, inputs, settings."""
    inputs = [Input(work / f"input-{i}", schema) for i, (schema, _) in enumerate(case.inputs)]
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for rows in batches[:files]:
            source.add(rows)
    conf = {
        **CONF,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": str(case.checkpoint_format),
        **case.conf,
        **case.candidate_conf,
    }
    run = Run(work / "run")
    frame = case.build([source.stream(spark) for source in inputs])
    finish(start(spark, frame, run, output_mode=case.mode, conf=conf), run)
    savepoint.create(run.checkpoint, work / "saved")
    for source, (_, batches) in zip(inputs, case.inputs, strict=True):
        for rows in batches[files:]:
            source.add(rows)
    return work / "saved", inputs, conf


def what_spark_does(
    spark: SparkSession,
    origin: Path,
    work: Path,
    build: Callable[[], DataFrame],
    mode: str,
    conf: Mapping[str, str],
    **options: Any,
) -> tuple[set[str], Run]:
    """Restore, and start the job. Return Spark's error conditions, none if it ran to its end.

    Args:
        options: of `savepoint.restore`.
    """
    run = Run(work / "again")
    savepoint.restore(origin, run.checkpoint, **options)
    try:
        finish(start(spark, build(), run, output_mode=mode, conf=conf), run)
    except StreamingQueryException as e:
        found = conditions(str(e))
        assert found, str(e)
        return found, run
    return set(), run
