"""A job's streaming queries, without starting them: its script or function is run, and what it would start is kept."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, MillpondError, UnsupportedError, error
from millpond.savepoint.schema_diff import ColumnDiff, schema_diff
from millpond.sinks.recorded import Sink, sink_of

_PLANNER = "org.apache.spark.sql.millpond.JobPlan"
_RUNNER = "org.apache.spark.sql.millpond.JobRun"
_OF_MILLPOND = re.compile(r"\[MILLPOND_(\w+)\] (.*?)(?: Hint: .*)?$", re.MULTILINE)
_CONDITION = re.compile(r"\[[A-Z_.0-9]+\] .*")  # as Spark begins its messages
_MESSAGE_CHARACTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """A query that a job would start."""

    writer: Any  # pyspark's DataStreamWriter
    name: str | None
    to_table: bool = False  # it is started by `toTable`
    format: str | None = None  # that `start` is given
    path: str | None = None  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOperator:
    """A stateful operator of the plan that Spark makes of a query."""

    operator: int
    name: str
    error: str  # why Spark would refuse the state that is there; empty if it would not
    columns: tuple[ColumnDiff, ...] = ()  # where that is because of its schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A source of a query. Sources are numbered from 0, as in Spark's offset log."""

    name: str
    first: int  # the number of the first source that is the same one: its own, but of one that a query reads twice
    files: bool  # it keeps a log of the files that it has read
    replaceable: bool  # by rows that are given
    columns: Mapping[str, str]  # name to type
    misfits: tuple[
        str, ...
    ]  # columns for which the rows that are given have no value, each with the reason


class _NotStarted:
    """What a job gets instead of a `StreamingQuery`: one that has ended already."""

    id = runId = "00000000-0000-0000-0000-000000000000"
    isActive = False
    lastProgress = None
    recentProgress: Sequence[object] = ()
    status: Mapping[str, object] = {
        "message": "not started",
        "isDataAvailable": False,
        "isTriggerActive": False,
    }

    def __init__(self, name: str | None) -> None:
        self.name = name

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        return None if timeout is None else True

    def processAllAvailable(self) -> None:
        return

    def stop(self) -> None:
        return

    def exception(self) -> None:
        return None


def load(
    job: str | os.PathLike[str] | Callable[..., object], session: Callable[[], Any]
) -> list[JobQuery]:
    """Run a job so that it starts no query, and return the queries that it would start.

    Args:
        job: path of a script, `path.py:function`, or a function. A function may take the session, and may return a streaming DataFrame
            or writer, or several, instead of starting queries. What a script prints goes to stderr.
        session: makes the Spark session that the job finds.
    Raises: InvalidInputError: INVALID_ARGUMENT: no such file or function, or it starts no query.
    """
    function = job if callable(job) else None
    path, name = ("", "") if callable(job) else _parts(os.fspath(job))
    spark = session()
    with _kept() as kept, redirect_stdout(sys.stderr):
        if function is None and name:
            function = _function(path, name)
        try:
            if function is not None:
                takes = bool(inspect.signature(function).parameters)
                kept += _queries(function(spark) if takes else function())
            else:
                _run(path)
        except SystemExit as e:
            if e.code not in (None, 0):
                raise InvalidInputError(f"the job ended with exit code {e.code}") from e
    if not kept:
        raise InvalidInputError(
            "the job starts no streaming query",
            hint="Name a function that returns the streaming DataFrame: --job job.py:build.",
        )
    return kept


def chosen(queries: Sequence[JobQuery], name: str | None) -> JobQuery:
    """Return the query of that name, or the only one. Raises: InvalidInputError: INVALID_ARGUMENT."""
    found = [query for query in queries if name is None or query.name == name]
    if len(found) == 1:
        return found[0]
    there = ", ".join(query.name or "one without a name" for query in queries)
    what = (
        f"no query {name!r}"
        if name is not None and not found
        else "several queries: say which (queryName)"
    )
    raise InvalidInputError(f"{what}; the job has: {there}")


def operators(
    query: JobQuery, state: str, batch: int, settings: Mapping[str, str]
) -> list[JobOperator]:
    """Return the stateful operators of the plan that Spark makes of `query`.

    Args:
        state: URI of the folder `state` of a Spark checkpoint that may be written to: what its operators are checked against.
        batch: the first batch that would run.
        settings: of the session, that the checkpoint pins.
    Raises: UnsupportedError: SHIM_MISSING: the session was started without Millpond.
    """
    planner = _of_shim(_PLANNER)
    found = json.loads(
        planner.describe(query.writer._jwrite, state, batch, json.dumps(dict(settings)))
    )
    return [_operator(one) for one in found["operators"]]


def sources(query: JobQuery, rows: Mapping[int, Any]) -> list[JobSource]:
    """Return the sources of `query`. Args: rows: DataFrames, by the numbers of sources. Raises: UnsupportedError: SHIM_MISSING."""
    found = json.loads(_of_shim(_RUNNER).describe(query.writer._jwrite, _java_rows(rows)))
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
    """Return where `query` writes to; None: it does not say so. Raises: UnsupportedError: SHIM_MISSING."""
    if query.to_table:
        return None
    said = _of_shim(_PLANNER).sink(query.writer._jwrite, query.format or "", query.path or "")
    return sink_of(json.loads(said))


def batch_frame(query: JobQuery, rows: object) -> Any:
    """Return rows (a DataFrame, or a `pyarrow.Table`) as a DataFrame. Raises: InvalidInputError: INVALID_ARGUMENT: it is neither."""
    from pyspark.sql import DataFrame

    if isinstance(rows, DataFrame):
        if rows.isStreaming:
            raise InvalidInputError(
                "rows are a streaming DataFrame: give one of a batch, spark.read instead of readStream"
            )
        return rows
    if type(rows).__module__.startswith("pyarrow."):
        return query.writer._spark.createDataFrame(rows)
    raise InvalidInputError(f"rows are a DataFrame or a pyarrow.Table, not a {type(rows).__name__}")


def setting(query: JobQuery, name: str) -> str | None:
    """Return a setting of the session in which `query` was built; None: it is not set."""
    value: str | None = query.writer._spark.conf.get(name, None)
    return value


def run_over(query: JobQuery, rows: Mapping[int, Any], checkpoint: str) -> list[int]:
    """Run one batch of `query`, without its sink, over `rows` instead of its sources; return how many rows were read of each source; of
    one that is in the plan twice once, with the rows of both readings.

    Args:
        rows: DataFrames, by the numbers of sources; the others give no row.
        checkpoint: URI of the Spark checkpoint that this makes.
    Raises: InvalidInputError: INVALID_ARGUMENT: Spark refuses the query, or it fails. What Millpond's state stores raise.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.streaming.query import StreamingQuery

    started = None
    try:
        started = StreamingQuery(
            _of_shim(_RUNNER).start(query.writer._jwrite, _java_rows(rows), checkpoint)
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
    hint = 'Let the job return its writer, with the output mode: frame.writeStream.outputMode("update").'
    return InvalidInputError(
        f"the query failed over the rows: {text.strip()[:_MESSAGE_CHARACTERS]}",
        hint=hint if "STREAMING_OUTPUT_MODE" in text else "",
    )


def parquet_frame(spark: Any, path: str) -> Any:
    """Return the DataFrame of Parquet files. Raises: InvalidInputError: INVALID_ARGUMENT: they cannot be read."""
    try:
        return spark.read.parquet(path)
    except Exception as e:  # py4j's own, where Spark gives its error no name in Python
        condition = _CONDITION.search(str(e))
        why = condition[0] if condition is not None else str(e).strip().partition("\n")[0]
        raise InvalidInputError(
            f"{path} cannot be read as Parquet: {why}", kind=ErrorKind.INVALID_ARGUMENT
        ) from e


def _java_rows(rows: Mapping[int, Any]) -> dict[int, Any]:
    return {number: frame._jdf for number, frame in rows.items()}


def _of_shim(name: str) -> Any:
    from millpond.session import running_class

    found = running_class(name)
    if found is None:
        raise UnsupportedError(
            "the Spark session was started without the Millpond jar", kind=ErrorKind.SHIM_MISSING
        )
    return found


def new_session(settings: Mapping[str, str]) -> Any:
    """Return the Spark session that a job is planned in: the one that runs, or a new one on this machine, with Millpond and `settings`."""
    from pyspark.sql import SparkSession

    from millpond.session import configure

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    for name, value in settings.items():
        builder = builder.config(name, value)
    if "spark.master" not in settings:
        builder = builder.master("local[1]")
    spark = configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _operator(described: Mapping[str, Any]) -> JobOperator:
    error = described.get("error")
    if error is None:
        return JobOperator(operator=described["operator"], name=described["name"], error="")
    condition, message = error["condition"], error["message"].strip()
    return JobOperator(
        operator=described["operator"],
        name=described["name"],
        error=message if condition in message else f"{condition}: {message}",
        columns=schema_diff(error["parameters"]),
    )


def _parts(job: str) -> tuple[str, str]:
    path, _, name = (
        job.rpartition(":")
        if ":" in job and job.rpartition(":")[2].isidentifier()
        else (job, "", "")
    )
    if not os.path.isfile(path):
        raise InvalidInputError(f"there is no file {path}")
    return path, name


def _run(path: str) -> None:
    arguments, search = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [path], [os.path.dirname(os.path.abspath(path))]
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = arguments, search


def function_at(place: str) -> Callable[..., Any]:
    """Return the function at `path.py:name`. Raises: InvalidInputError: INVALID_ARGUMENT: there is none."""
    path, name = _parts(place)
    if not name:
        raise InvalidInputError(
            f"{place} names no function", hint="Name the file and the function: change.py:change."
        )
    return _function(path, name)


def _function(path: str, name: str) -> Callable[..., object]:
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    if spec is None or spec.loader is None:
        raise InvalidInputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    search = list(sys.path)
    sys.path[:0] = [os.path.dirname(os.path.abspath(path))]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = search
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInputError(f"{path} has no function {name}")
    return function  # type: ignore[no-any-return]


def _queries(made: object) -> list[JobQuery]:
    """The queries in what a function returned: a streaming DataFrame, a writer, or several."""
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if isinstance(made, DataFrame):
        return [JobQuery(writer=made.writeStream, name=None)] if made.isStreaming else []
    if isinstance(made, DataStreamWriter):
        return [JobQuery(writer=made, name=None)]
    if isinstance(made, list | tuple):
        return [query for one in made for query in _queries(one)]
    return []


def _text(value: object) -> str | None:
    return None if value is None else str(value)


@contextmanager
def _kept() -> Iterator[list[JobQuery]]:
    """While this is open, queries are not started but kept."""
    from pyspark.sql.streaming.query import StreamingQueryManager
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    kept: list[JobQuery] = []
    names: dict[int, str] = {}

    def start(
        self: Any,
        path: object = None,
        format: object = None,
        outputMode: str | None = None,
        partitionBy: object = None,
        queryName: str | None = None,
        **options: object,
    ) -> _NotStarted:
        writer = self.outputMode(outputMode) if outputMode is not None else self
        name = queryName or names.get(id(self))
        where = path if path is not None else options.get("path")
        kept.append(JobQuery(writer=writer, name=name, format=_text(format), path=_text(where)))
        return _NotStarted(name)

    def to_table(self: Any, tableName: str, **options: Any) -> _NotStarted:
        kept.append(
            JobQuery(
                writer=self, name=options.get("queryName") or names.get(id(self)), to_table=True
            )
        )
        return _NotStarted(kept[-1].name)

    def query_name(self: Any, queryName: str) -> Any:
        names[id(self)] = queryName
        return originals["queryName"](self, queryName)

    originals = {
        name: getattr(DataStreamWriter, name) for name in ("start", "toTable", "queryName")
    }
    waiting = StreamingQueryManager.awaitAnyTermination
    changed: dict[str, object] = {"start": start, "toTable": to_table, "queryName": query_name}
    try:
        for name, function in changed.items():
            setattr(DataStreamWriter, name, function)
        StreamingQueryManager.awaitAnyTermination = lambda self, timeout=None: (
            None if timeout is None else True
        )  # type: ignore[method-assign]
        yield kept
    finally:
        for name, function in originals.items():
            setattr(DataStreamWriter, name, function)
        StreamingQueryManager.awaitAnyTermination = waiting  # type: ignore[method-assign]
