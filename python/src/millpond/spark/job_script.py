"""Runs a job's script or function, and keeps the streaming queries that it would start."""

from __future__ import annotations

import importlib.util
import inspect
import os
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Any

from millpond.errors import InvalidInputError
from millpond.spark.user_code import users


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """A query that a job would start."""

    writer: Any  # pyspark's DataStreamWriter
    name: str | None
    to_table: bool = False  # the job calls `toTable`, not `start`
    format: str | None = None  # the argument of `start`
    path: str | None = None  # the argument of `start`


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
    with _kept() as (kept, names), redirect_stdout(sys.stderr):
        try:
            with _as_script(path, arguments) if path else nullcontext():
                if function is None and name:
                    function = _function(path, name)
                if function is None:
                    with users("your job", path):
                        runpy.run_path(path, run_name="__main__")
                else:
                    kept += _queries(_called(function, spark), names)
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


def _function(path: str, name: str) -> Callable[..., object]:
    # No `import` says this name, so none finds the user's types.py instead of Python's own.
    spec = importlib.util.spec_from_file_location(os.path.basename(path), path)
    if spec is None or spec.loader is None:
        raise InvalidInputError(f"{path} is no Python file", hint="Name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    search = list(sys.path)
    sys.path[:0] = [os.path.dirname(os.path.abspath(path))]
    # A dataclass looks for its module. Left there, Spark's workers would have to import it.
    sys.modules[module.__name__] = module
    try:
        with users("your file", path):
            spec.loader.exec_module(module)
    finally:
        del sys.modules[module.__name__]
        sys.path[:] = search
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInputError(
            f"{path} has no function {name}",
            hint="Name a function that the file defines at its top level: file.py:name.",
        )
    return function  # type: ignore[no-any-return]


class _Names:
    """The names that a job gives its writers, which do not tell them."""

    def __init__(self) -> None:
        # By id. The writers are kept too: else another one might get the id of one that is gone.
        self._found: dict[int, tuple[Any, str]] = {}

    def give(self, writer: Any, name: str) -> None:
        self._found[id(writer)] = writer, name

    def of(self, writer: Any) -> str | None:
        found = self._found.get(id(writer))
        return None if found is None else found[1]


def _queries(made: object, names: _Names) -> list[JobQuery]:
    """Return the queries that a job's function returned: streaming DataFrames or writers."""
    # Start-up time.
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if isinstance(made, DataFrame):
        return [JobQuery(writer=made.writeStream, name=None)] if made.isStreaming else []
    if isinstance(made, DataStreamWriter):
        return [JobQuery(writer=made, name=names.of(made))]
    if isinstance(made, list | tuple):
        return [query for one in made for query in _queries(one, names)]
    return []


def _text(value: object) -> str | None:
    return None if value is None else str(value)


@contextmanager
def _kept() -> Iterator[tuple[list[JobQuery], _Names]]:
    """Inside this block a job's queries do not start, and it does not stop the session, which is
    needed to plan them. The yielded list keeps the queries.
    """
    # Start-up time.
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQueryManager
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    kept: list[JobQuery] = []
    names = _Names()

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
        name = queryName or names.of(self)
        where = path if path is not None else options.get("path")
        kept.append(JobQuery(writer=writer, name=name, format=_text(format), path=_text(where)))
        return _NotStarted(name)

    def to_table(self: Any, tableName: str, **options: Any) -> _NotStarted:
        name = options.get("queryName") or names.of(self)
        kept.append(JobQuery(writer=self, name=name, to_table=True))
        return _NotStarted(kept[-1].name)

    def query_name(self: Any, queryName: str) -> Any:
        names.give(self, queryName)
        return originals[DataStreamWriter, "queryName"](self, queryName)

    def await_any(self: Any, timeout: float | None = None) -> bool | None:
        return None if timeout is None else True

    def stop(self: object) -> None:
        return

    changed: list[tuple[type, str, object]] = [
        (DataStreamWriter, "start", start),
        (DataStreamWriter, "toTable", to_table),
        (DataStreamWriter, "queryName", query_name),
        (StreamingQueryManager, "awaitAnyTermination", await_any),
        (SparkSession, "stop", stop),
        (SparkContext, "stop", stop),
    ]
    originals = {(cls, name): getattr(cls, name) for cls, name, _ in changed}
    try:
        for cls, name, function in changed:
            setattr(cls, name, function)
        yield kept, names
    finally:
        for (cls, name), function in originals.items():
            setattr(cls, name, function)
