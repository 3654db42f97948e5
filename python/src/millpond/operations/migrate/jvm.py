"""A JVM of our own, with Spark's jars and the shim (`_jvm.command`). It runs one main class, which
reads a line of JSON and answers with lines of JSON.

That needs no Spark session, so it takes one second and not ten.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from millpond._jvm import answer_of
from millpond.errors import (
    ErrorKind,
    FormatError,
    InternalError,
    MillpondError,
    UnavailableError,
    UnsupportedError,
    error,
)
from millpond.storage.hadoop_errors import NO_JAR, lacks_connector

_SHIMS_MESSAGE = re.compile(r"\[MILLPOND_\w+\] (.*?)( Hint: .*)?", re.DOTALL)
_TAIL_CHARACTERS = 2000
_END_S = 15.0
_LOOK_S = 0.5


def answers_in_session(copier: Any, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give `request` to the shim's class in the JVM of the running session, and yield its answers.
    When this ends, however it ends, nothing is written any more.

    Raises: as `answers`.
    """
    # In a thread: py4j has one connection for each, and one that waits can say nothing more.
    with ThreadPoolExecutor(1) as pool:
        copying = copier.inSession()
        told = pool.submit(copying.run, json.dumps(request))
        try:
            while not told.done():
                wait([told], _LOOK_S)  # a signal that another thread gets wakes nobody
            answers = json.loads(told.result())
        except BaseException:
            copying.stop()  # the JVM would go on; the end of the pool waits for it
            raise
    for answer in answers:
        if "error" in answer:
            raise _error(answer["error"])
        yield answer


def answers(line: Sequence[str], request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the command `line`, give it `request`, and yield its answers up to the one that says
    `done`.

    The JVM ends when this process ends, whatever happens.

    Raises: the error that the JVM answers with. InternalError: the JVM ended without an answer.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert process.stdin is not None and process.stdout is not None
        try:
            # A JVM that died at once gives no answer, and its log says why.
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()  # stays open: its end tells the JVM that this process is gone
            for text in process.stdout:
                answer = answer_of(text)
                if answer is None:
                    continue
                if "error" in answer:
                    raise _error(answer["error"])
                if "done" in answer:
                    return
                yield answer
            code = process.wait()
            raise InternalError(
                f"the JVM ended with exit code {code} and without an answer: {_tail(log)}"
            )
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(_END_S)  # the JVM deletes its local files
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _tail(log: Any) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_CHARACTERS))
    return str(log.read().decode("utf-8", "replace")).strip()


def _error(described: Mapping[str, str]) -> MillpondError:
    """Return the error that the JVM describes."""
    message = described["message"]
    if "kind" in described:
        match = _SHIMS_MESSAGE.fullmatch(message)
        kind = described["kind"]
        known = ErrorKind(kind) if kind in ErrorKind.__members__ else ErrorKind.INTERNAL
        return error(known, match[1] if match else message, hint=described.get("hint", ""))
    if described.get("condition", "").startswith("CANNOT_LOAD_STATE_STORE"):
        return FormatError(f"Spark cannot load the state: {message}", kind=ErrorKind.FORMAT_DAMAGED)
    if "OutOfMemoryError" in message:
        return UnavailableError(
            message,
            kind=ErrorKind.MEMORY_EXHAUSTED,
            hint="Give the JVM more: --conf spark.driver.memory=8g.",
        )
    if lacks_connector(message):
        return UnsupportedError(message, kind=ErrorKind.STORAGE_UNSUPPORTED, hint=NO_JAR)
    return InternalError(f"Spark's state store failed: {message}")
