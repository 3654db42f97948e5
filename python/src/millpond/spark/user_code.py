"""Calls what a user wrote: their faults are told as theirs, with the line."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TypeVar

from millpond.errors import ErrorKind, InvalidInputError, MillpondError
from millpond.spark.kafka_offsets import connector
from millpond.storage.given import NOTHING, reached_by

T = TypeVar("T")
_LINKAGE = re.compile(r"NoClassDefFoundError|NoSuchMethodError|ClassNotFound|AbstractMethodError")


@contextmanager
def users(what: str, path: str | None = None) -> Iterator[None]:
    """Inside this block code of the user runs. What it raises becomes an InvalidInputError.

    Errors of Millpond pass as they are: the user's code may call Millpond. It does not have the
    options of the storages of the call that runs it.

    Args:
        what: names the code: `your function change`.
        path: the user's file. None: the file of the innermost frame that is not in a package.
    Raises: InvalidInputError: USER_CODE_FAILED: with the error's class, its text, and the line.
    """
    try:
        with reached_by(NOTHING):
            yield
    except MillpondError:
        raise
    except Exception as e:
        text = reason_in(str(e))
        said = f"{type(e).__name__}: {text}" if text else type(e).__name__
        raise InvalidInputError(
            f"{what} raised {said}{_place(e, path)}",
            kind=ErrorKind.USER_CODE_FAILED,
            hint=_hint(text),
        ) from e


def reason_in(text: str) -> str:
    """Return the line of an error's text that says why."""
    lines = text.strip().splitlines() or [""]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if len(lines) > 1 and lines[1].startswith(": "):  # py4j, and the JVM's own trace
        return causes[-1] if causes else lines[1].removeprefix(": ")
    # Of a failed Python worker Spark tells the traceback: its last line is the reason.
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") else lines[0]


def _hint(reason: str) -> str:
    """Return what helps; empty: what helps against any fault of a user's code."""
    if "KAFKA_DATA_SOURCE_NOT_ENABLED" not in reason and not (
        _LINKAGE.search(reason) and "kafka" in reason
    ):
        return ""
    return (
        "Spark's connector to Kafka is not there, or lacks jars, or is for another Spark. Give the"
        " session all of it:"
        f" --conf spark.jars.packages={connector(version('pyspark'))} or the newest before it."
    )


def each(rows: Iterator[T], what: str) -> Iterator[T]:
    """Yield what an iterator of the user yields. Raises: as `users`."""
    while True:
        with users(what):
            try:
                row = next(rows)
            except StopIteration:
                return
        yield row


def _place(e: Exception, path: str | None) -> str:
    """Return ` in line 12 of change.py`, or nothing if no line is the user's."""
    if isinstance(e, SyntaxError) and e.filename is not None:
        return f" in line {e.lineno} of {os.path.basename(e.filename)}"
    wanted = None if path is None else os.path.realpath(path)
    found = ""
    for frame in traceback.extract_tb(e.__traceback__):
        at = os.path.realpath(frame.filename)
        mine = at == wanted if wanted is not None else not _is_package(frame.filename)
        if mine:
            found = f" in line {frame.lineno} of {os.path.basename(frame.filename)}"
    return found


_OWN = os.path.realpath(os.path.dirname(os.path.dirname(__file__)))
_LIBRARY = os.path.realpath(os.path.dirname(os.__file__))


def _is_package(filename: str) -> bool:
    at = os.path.realpath(filename)
    packages = f"{os.sep}site-packages{os.sep}" in at or filename.startswith("<frozen")
    return packages or at.startswith((_OWN + os.sep, _LIBRARY + os.sep))
