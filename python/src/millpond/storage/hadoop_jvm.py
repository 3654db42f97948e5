"""Hadoop's file systems for a process that is no agent: a command, or a script.

With a session, the session's JVM moves the files, with the session's settings and credentials.
Otherwise a JVM of this process's own does. It starts with the first file, which takes a second, and
ends with this process. It reads core-site.xml and hdfs-site.xml in HADOOP_CONF_DIR.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from millpond._jvm import answer_of, command, running_class
from millpond.errors import ErrorKind, UnavailableError

_FILES = "org.apache.spark.sql.millpond.agent.HadoopFiles"
_MAIN = "org.apache.spark.sql.millpond.agent.FilesMain"
_HEAP = {"spark.driver.memory": "256m"}  # bytes pass through in small pieces
_NO_MEMORY = 3  # exit code of FilesMain.scala
_MEMORY_HINT = (
    "What it lists does not fit into its memory. Run the command again with _JAVA_OPTIONS=-Xmx2g in"
    " its environment."
)
_TAIL_BYTES = 2000
_END_S = 15.0


def ask(method: str, request: str) -> str:
    """Let a JVM move a file. Return its answer; both are JSON (`HadoopFiles.scala`).

    Raises: UnsupportedError: SHIM_MISSING, SHIM_VERSION_MISMATCH; UNSUPPORTED: no java.
        UnavailableError: STORAGE_UNAVAILABLE: the JVM ended.
    """
    files = session_files()
    return str(files.call(method, request)) if files is not None else _own().ask(method, request)


def session_files() -> Any:
    """Return the object that moves files in the JVM of this process's session; None: no session."""
    return running_class(_FILES)


_lock = threading.Lock()
_running: _Jvm | None = None


def _own() -> _Jvm:
    global _running
    with _lock:
        if _running is None or _running.ended or _running.owner != os.getpid():
            _running = _Jvm()
        return _running


class _Jvm:
    """A JVM that answers several requests at a time, until its standard input ends."""

    def __init__(self) -> None:
        line = command(_MAIN, _HEAP)
        self.owner = os.getpid()
        self.ended = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[str]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._receive, name="millpond-hadoop", daemon=True).start()
        atexit.register(self._end)

    def ask(self, method: str, request: str) -> str:
        """As the module's `ask`. Several threads may ask at once."""
        answer = Future[str]()
        number = next(self._numbers)
        said = json.dumps({"id": number, "method": method, "request": request}).encode() + b"\n"
        assert self._process.stdin is not None
        with self._lock:
            if self.ended:
                raise self._gone()
            self._waiting[number] = answer
            # A JVM that has ended gives no answer. Whoever receives answers notices that.
            with suppress(OSError):
                self._process.stdin.write(said)
                self._process.stdin.flush()
        return answer.result()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = answer_of(line)
            if answer is None:
                continue
            with self._lock:
                asked = self._waiting.pop(answer["id"])
            asked.set_result(answer["answer"])
        self._process.wait()
        with self._lock:
            self.ended = True
            left, self._waiting = self._waiting, {}
        for asked in left.values():
            asked.set_exception(self._gone())

    def _gone(self) -> UnavailableError:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        said = self._log.read().decode("utf-8", "replace").strip()
        code = self._process.returncode
        hint = "Run the command again. If the same happens, check JAVA_HOME and SPARK_HOME."
        return UnavailableError(
            f"the JVM that moves the files ended with exit code {code}: {said}",
            kind=ErrorKind.STORAGE_UNAVAILABLE,
            hint=_MEMORY_HINT if code == _NO_MEMORY else hint,
        )

    def _end(self) -> None:
        if self.owner != os.getpid():
            return  # a fork of the process that has the JVM
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
