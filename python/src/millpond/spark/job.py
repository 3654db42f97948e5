"""What Spark makes of a job's streaming query: its stateful operators, sources and sink. Runs a
batch of it over other rows.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond._jvm import running_class
from millpond.config import PREFIX
from millpond.errors import ErrorKind, InvalidInputError, MillpondError, UnsupportedError, error
from millpond.spark.job_script import JobQuery
from millpond.spark.metadata import PROVIDER_KEY
from millpond.spark.schema_diff import ColumnDiff, schema_diff
from millpond.spark.session import PROVIDER_CLASS, configure, start
from millpond.spark.sinks.recorded import Sink, sink_of

_PLANNER = "org.apache.spark.sql.millpond.tools.JobPlan"
_RUNNER = "org.apache.spark.sql.millpond.tools.JobRun"
_OF_MILLPOND = re.compile(r"\[MILLPOND_(\w+)\] (.*?)(?: Hint: .*)?$", re.MULTILINE)
_CONDITION = re.compile(r"\[[A-Z_.0-9]+\] .*")  # Spark's messages begin so
_MESSAGE_CHARACTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOperator:
    """A stateful operator of the plan that Spark makes of a query."""

    operator: int
    name: str
    error: str  # why Spark would refuse the stored state; "" if it would not
    columns: tuple[ColumnDiff, ...] = ()  # which columns differ, if schemas are the reason
    # Of an aggregation: its buffers, as texts, before the first row. They are the last columns of
    # its values. None stands for null.
    buffers: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A source of a query. Sources are numbered from 0, as in Spark's offset log."""

    name: str
    # Its own number. If the query reads this source twice: the number of its first place.
    first: int
    files: bool  # it keeps a log of the files that it has read
    replaceable: bool  # rows of the user can replace it
    columns: Mapping[str, str]  # name to type
    misfits: tuple[str, ...]  # columns for which the user's rows have no value, with the reason


def operators(
    query: JobQuery, state: str, batch: int, settings: Mapping[str, str]
) -> list[JobOperator]:
    """Return the stateful operators of the plan that Spark makes of `query`.

    Args:
        state: URI of the folder `state` of a Spark checkpoint. Spark checks the operators against
            its state, and may write to it.
        batch: the first batch that would run.
        settings: the session settings that the Spark checkpoint pins.
    Raises: UnsupportedError: SHIM_MISSING: the session was started without Millpond.
    """
    planner = of_shim(_PLANNER)
    found = json.loads(
        planner.describe(query.writer._jwrite, state, batch, json.dumps(dict(settings)))
    )
    return [_operator(one) for one in found["operators"]]


def sources(query: JobQuery, rows: Mapping[int, Any]) -> list[JobSource]:
    """Return the sources of `query`.

    Args:
        rows: DataFrames that would replace sources, by number of the source.
    Raises: UnsupportedError: SHIM_MISSING.
    """
    found = json.loads(of_shim(_RUNNER).describe(query.writer._jwrite, _java_rows(rows)))
    return [
        JobSource(
            name=one["name"],
            first=one["same_as"],
            files=one["files"],
            replaceable=one["replaceable"],
            columns={column["name"]: column["type"] for column in one["columns"]},
            misfits=tuple(one.get("misfits", ())),
        )
        for one in found["sources"]
    ]


def sink(query: JobQuery) -> Sink | None:
    """Return where `query` writes to; None if that cannot be told.

    Raises: UnsupportedError: SHIM_MISSING.
    """
    if query.to_table:
        return None
    said = of_shim(_PLANNER).sink(query.writer._jwrite, query.format or "", query.path or "")
    return sink_of(json.loads(said))


def batch_frame(query: JobQuery, rows: object) -> Any:
    """Return `rows`, a DataFrame or a `pyarrow.Table`, as a DataFrame.

    Raises: InvalidInputError: INVALID_ARGUMENT: it is neither, or a streaming DataFrame.
    """
    from pyspark.sql import DataFrame  # start-up time

    if isinstance(rows, DataFrame):
        if rows.isStreaming:
            raise InvalidInputError(
                "rows are a streaming DataFrame: give a batch DataFrame, by spark.read instead of"
                " spark.readStream",
                hint="Read the history with spark.read.",
            )
        return rows
    if type(rows).__module__.startswith("pyarrow."):
        return query.writer._spark.createDataFrame(rows)
    raise InvalidInputError(
        f"rows are a DataFrame or a pyarrow.Table, not a {type(rows).__name__}",
        hint="Give spark.read.parquet(path), or a pyarrow.Table.",
    )


def setting(query: JobQuery, name: str) -> str | None:
    """Return a setting of the session in which the job built `query`; None if it is not set."""
    value: str | None = query.writer._spark.conf.get(name, None)
    return value


def provider(query: JobQuery) -> str | None:
    """Return the state store provider of `query` if the job starts it; None: Spark's default.

    With the option realTime the session names none, and the extension gives Millpond's to each
    query.
    """
    named = setting(query, PROVIDER_KEY)
    if named is None and (setting(query, f"{PREFIX}realTime") or "").strip().lower() == "true":
        return PROVIDER_CLASS
    return named


def run_over(query: JobQuery, rows: Mapping[int, Any], checkpoint: str) -> list[int]:
    """Run one batch of `query` over `rows` instead of its sources, and without its sink.

    Args:
        rows: DataFrames, by number of the source; other sources give no row.
        checkpoint: URI of the Spark checkpoint that this makes.
    Returns: how many rows Spark read of each source. A source that is in the plan twice counts
        once, with the rows of both readings.
    Raises:
        InvalidInputError: INVALID_ARGUMENT: Spark refuses the query, or it fails.
        MillpondError: what Millpond's state stores raise.
    """
    # Start-up time.
    from pyspark.errors import PySparkException
    from pyspark.sql.streaming.query import StreamingQuery

    started = None
    try:
        started = StreamingQuery(
            of_shim(_RUNNER).start(query.writer._jwrite, _java_rows(rows), checkpoint)
        )
        started.awaitTermination()
        progress: Any = started.lastProgress
        return [int(source["numInputRows"]) for source in progress["sources"]]
    except PySparkException as e:
        raise _failed(str(e)) from e
    finally:
        if started is not None and started.isActive:
            started.stop()


def _failed(text: str) -> MillpondError:
    match = _OF_MILLPOND.search(text)
    if match and match[1] in ErrorKind.__members__:
        return error(ErrorKind[match[1]], match[2])
    hint = (
        "Let the job return its writer, with the output mode:"
        ' frame.writeStream.outputMode("update").'
    )
    return InvalidInputError(
        f"the query failed over the rows: {text.strip()[:_MESSAGE_CHARACTERS]}",
        hint=hint if "STREAMING_OUTPUT_MODE" in text else "",
    )


def parquet_frame(spark: Any, path: str) -> Any:
    """Return the Parquet files at `path` as a DataFrame.

    Raises: InvalidInputError: INVALID_ARGUMENT: Spark cannot read them.
    """
    try:
        return spark.read.parquet(path)
    except Exception as e:  # an error of py4j, if pyspark has no class for Spark's error
        condition = _CONDITION.search(str(e))
        why = condition[0] if condition is not None else str(e).strip().partition("\n")[0]
        raise InvalidInputError(
            f"{path} cannot be read as Parquet: {why}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name a Parquet file, or a directory of them.",
        ) from e


def _java_rows(rows: Mapping[int, Any]) -> dict[int, Any]:
    return {number: frame._jdf for number, frame in rows.items()}


def of_shim(name: str) -> Any:
    """Return a class of the shim in the running JVM. Raises: UnsupportedError: SHIM_MISSING."""
    found = running_class(name)
    if found is None:
        raise UnsupportedError(
            "the Spark session was started without the Millpond jar", kind=ErrorKind.SHIM_MISSING
        )
    return found


def new_session(settings: Mapping[str, str]) -> Any:
    """Return the Spark session in which to plan a job.

    It is the one that runs, or else a new one on this machine, with Millpond and `settings`.

    Raises: as `configure` and `start`.
    """
    from pyspark.sql import SparkSession  # start-up time

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    for name, value in settings.items():
        builder = builder.config(name, value)
    if "spark.master" not in settings:
        builder = builder.master("local[1]")
    spark = start(configure(builder))
    spark.sparkContext.setLogLevel("ERROR")
    local = (spark.sparkContext.master or "").startswith("local")
    if local and "PYSPARK_PYTHON" not in os.environ:
        # The job's Python workers need this environment, not the first python3 on the path.
        spark.sparkContext.pythonExec = sys.executable
    return spark


def _operator(described: Mapping[str, Any]) -> JobOperator:
    error = described.get("error")
    found = JobOperator(
        operator=described["operator"],
        name=described["name"],
        error="",
        buffers=tuple(described["buffers"]),
    )
    if error is None:
        return found
    condition, message = error["condition"], error["message"].strip()
    return replace(
        found,
        error=message if condition in message else f"{condition}: {message}",
        columns=schema_diff(error["parameters"]),
    )
