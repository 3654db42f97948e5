"""The streaming queries of a job: runs its script or function, and keeps the queries unstarted."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Any

from millpond._jvm import running_class
from millpond.errors import ErrorKind, InvalidInputError, MillpondError, UnsupportedError, error
from millpond.spark.schema_diff import ColumnDiff, schema_diff
from millpond.spark.session import configure
from millpond.spark.sinks.recorded import Sink, sink_of
from millpond.spark.user_code import users

_PLANNER = "org.apache.spark.sql.millpond.tools.JobPlan"
_RUNNER = "org.apache.spark.sql.millpond.tools.JobRun"
_OF_MILLPOND = re.compile(r"\[MILLPOND_(\w+)\] (.*?)(?: Hint: .*)?$", re.MULTILINE)
_CONDITION = re.compile(r"\[[A-Z_.0-9]+\] .*")  # Spark's messages begin so
_MESSAGE_CHARACTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """A query that a job would start."""

    writer: Any  # pyspark's DataStreamWriter
    name: str | None
    to_table: bool = False  # the job calls `toTable`, not `start`
    format: str | None = None  # the argument of `start`
    path: str | None = None  # the argument of `start`


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOperator:
    """A stateful operator of the plan that Spark makes of a query."""

    operator: int
    name: str
    error: str  # why Spark would refuse the stored state; "" if it would not
    columns: tuple[ColumnDiff, ...] = ()  # which columns differ, if schemas are the reason


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


class _NotStarted:
    """Stands for a `StreamingQuery` in a job: one that has already ended."""

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
    """Run a job without starting its queries. Return the queries that it would start.

    What the job prints goes to stderr.

    Args:
        job: the path of a script, `path.py:function`, or a function; behind a path its arguments,
            `job.py --day 2026-01-01`, quoted as in a shell, which it finds in `sys.argv`. A
            function may take the session. It may return one or several streaming DataFrames or
            writers instead of starting queries.
        session: makes the Spark session that the job finds.
    Raises: InvalidInputError: INVALID_ARGUMENT: no such file or function, or it starts no query;
        USER_CODE_FAILED: it raised an error.
    """
    function = job if callable(job) else None
    place, arguments = ("", []) if callable(job) else _with_arguments(os.fspath(job))
    path, name = _parts(place) if place else ("", "")
    spark = session()
    with _kept() as kept, redirect_stdout(sys.stderr):
        try:
            with _as_script(path, arguments) if path else nullcontext():
                if function is None and name:
                    function = _function(path, name)
                if function is None:
                    with users("your job", path):
                        runpy.run_path(path, run_name="__main__")
                else:
                    kept += _queries(_called(function, spark))
        except SystemExit as e:
            if e.code not in (None, 0):
                raise InvalidInputError(
                    f"the job ended with exit code {e.code}",
                    hint='A script that takes arguments gets them so: --job "job.py --day 1".',
                ) from e
    if not kept:
        raise InvalidInputError(
            "the job starts no streaming query",
            hint="Name a function that returns the streaming DataFrame: --job job.py:build.",
        )
    return kept


def chosen(queries: Sequence[JobQuery], name: str | None) -> JobQuery:
    """Return the query of the name; without a name, the only query.

    Raises: InvalidInputError: INVALID_ARGUMENT: there is no such query, or there are several.
    """
    found = [query for query in queries if name is None or query.name == name]
    if len(found) == 1:
        return found[0]
    there = ", ".join(query.name or "one without a name" for query in queries)
    what = (
        f"no query {name!r}"
        if name is not None and not found
        else "several queries: say which (queryName)"
    )
    raise InvalidInputError(
        f"{what}; the job has: {there}",
        hint="Say --query NAME (in Python query=), the queryName that the job gives its writer.",
    )


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
    planner = _of_shim(_PLANNER)
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
    """Return where `query` writes to; None if that cannot be told.

    Raises: UnsupportedError: SHIM_MISSING.
    """
    if query.to_table:
        return None
    said = _of_shim(_PLANNER).sink(query.writer._jwrite, query.format or "", query.path or "")
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


def _of_shim(name: str) -> Any:
    found = running_class(name)
    if found is None:
        raise UnsupportedError(
            "the Spark session was started without the Millpond jar", kind=ErrorKind.SHIM_MISSING
        )
    return found


def new_session(settings: Mapping[str, str]) -> Any:
    """Return the Spark session in which to plan a job.

    It is the one that runs, or else a new one on this machine, with Millpond and `settings`.
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
    spark = configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    local = (spark.sparkContext.master or "").startswith("local")
    if local and "PYSPARK_PYTHON" not in os.environ:
        # The job's Python workers need this environment, not the first python3 on the path.
        spark.sparkContext.pythonExec = sys.executable
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
        raise InvalidInputError(
            f"there is no file {path}",
            hint="Name a Python file that is there, with its path from this directory.",
        )
    return path, name


def _with_arguments(job: str) -> tuple[str, list[str]]:
    """Return the place of a job, and the arguments behind it."""
    path, _, name = job.rpartition(":")
    if os.path.isfile(job) or (os.path.isfile(path) and name.isidentifier()):
        return job, []  # a path may hold spaces
    try:
        words = shlex.split(job)
    except ValueError as e:
        raise InvalidInputError(
            f"there is no file {job}, and as a command it has: {e}",
            hint="Name the script, then its arguments, quoted as in a shell.",
        ) from e
    return (words[0], words[1:]) if words else (job, [])


@contextmanager
def _as_script(path: str, arguments: Sequence[str]) -> Iterator[None]:
    """Inside this block Python looks as it does to a script that is started with arguments."""
    before, search = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [path, *arguments], [os.path.dirname(os.path.abspath(path))]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, search


def _called(function: Callable[..., object], spark: Any) -> object:
    with users(f"your function {getattr(function, '__name__', type(function).__name__)}"):
        takes = bool(inspect.signature(function).parameters)
        return function(spark) if takes else function()


def function_at(place: str) -> Callable[..., Any]:
    """Return the function at `path.py:name`.

    Raises: InvalidInputError: INVALID_ARGUMENT: there is none.
    """
    path, name = _parts(place)
    if not name:
        raise InvalidInputError(
            f"{place} names no function", hint="Name the file and the function: change.py:change."
        )
    return _function(path, name)


def _function(path: str, name: str) -> Callable[..., object]:
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    if spec is None or spec.loader is None:
        raise InvalidInputError(f"{path} is no Python file", hint="Name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    search = list(sys.path)
    sys.path[:0] = [os.path.dirname(os.path.abspath(path))]
    try:
        with users("your file", path):
            spec.loader.exec_module(module)
    finally:
        sys.path[:] = search
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInputError(
            f"{path} has no function {name}",
            hint="Name a function that the file defines at its top level: file.py:name.",
        )
    return function  # type: ignore[no-any-return]


def _queries(made: object) -> list[JobQuery]:
    """Return the queries that a job's function returned: streaming DataFrames or writers."""
    # Start-up time.
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
    """Inside this block a job's queries do not start. The yielded list keeps them."""
    # Start-up time.
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

    def await_any(self: Any, timeout: float | None = None) -> bool | None:
        return None if timeout is None else True

    originals = {
        name: getattr(DataStreamWriter, name) for name in ("start", "toTable", "queryName")
    }
    waiting = StreamingQueryManager.awaitAnyTermination
    changed: dict[str, object] = {"start": start, "toTable": to_table, "queryName": query_name}
    try:
        for name, function in changed.items():
            setattr(DataStreamWriter, name, function)
        StreamingQueryManager.awaitAnyTermination = await_any  # type: ignore[method-assign]
        yield kept
    finally:
        for name, function in originals.items():
            setattr(DataStreamWriter, name, function)
        StreamingQueryManager.awaitAnyTermination = waiting  # type: ignore[method-assign]
