"""What `millpond savepoint plan` writes to a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond import savepoint
from tests.row_checkpoints import RowsBuilder

pytestmark = pytest.mark.spark

_JOB = """
import sys
from pyspark.sql import functions as F

print("day", sys.argv[1])

def build(spark):
    print("words of the job")
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    spark.range(2).mapInPandas(lambda frames: frames, "id long").count()
    counts = numbers.groupBy("value").agg(F.count("*").alias("n"))
    try:
        counts.writeStream.outputMode("update").format("noop").start().awaitTermination()
    finally:
        spark.stop()
"""


@pytest.mark.parametrize(
    ("conf", "java_home", "told"),
    [
        ("spark.master=local[1]", "/none", "UNSUPPORTED: no java was found"),
        *(
            pytest.param(
                f"spark.master={master}",
                None,
                f"INVALID_ARGUMENT: Spark does not start: {why}",
                marks=pytest.mark.deep,
            )
            for master, why in (
                ("typo", "[JAVA_GATEWAY_EXITED]"),
                ("local[x]", "org.apache.spark.SparkException: Could not parse Master URL"),
            )
        ),
    ],
    ids=["no java", "no such master", "no such number"],
)
def test_a_spark_that_does_not_start_is_no_bug(
    tmp_path: Path, conf: str, java_home: str | None, told: str
) -> None:
    built, saved = RowsBuilder(tmp_path / "query").build(), tmp_path / "saved"
    savepoint.create(built.root, saved)
    (tmp_path / "job.py").write_text(_JOB)
    environment = {**os.environ, **({"JAVA_HOME": java_home} if java_home else {})}
    for command in (
        ["savepoint", "plan", str(saved), "--job", f"{tmp_path}/job.py:build"],
        ["savepoint", "verify", str(saved), "--engine", "spark"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "millpond.cli.main", *command, "--conf", conf],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 2 and f"millpond: {told}" in done.stderr, done.stderr


@pytest.mark.deep
def test_the_terminal_shows_the_plan_and_the_job_alone(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    savepoint.create(RowsBuilder(tmp_path / "job").build().root, saved)
    (tmp_path / "job.py").write_text(_JOB)
    command = [sys.executable, "-m", "millpond.cli.main", "savepoint", "plan", str(saved)]
    done = subprocess.run(
        [*command, "--job", f"{tmp_path}/job.py:build 2026-01-01"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 700m pyspark-shell"},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "stateStoreSave" in done.stdout
    assert done.stderr.splitlines() == ["day 2026-01-01", "words of the job"]
