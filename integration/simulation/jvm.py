"""The JVM with the providers of a simulation, and the pipe to it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from integration.harness import ProviderError
from integration.jvm import REPO, compile_harness, compiled, java_command, millpond_jar

SOURCES = REPO / "jvm-shim" / "src" / "simulation" / "scala"
SILENCE_S = 120.0
_THREADS_S = 30.0
_THREADS_END = b"JNI global refs"
_MAIN = "org.apache.spark.sql.millpond.testing.Simulation"


class Hang(Exception):
    """The JVM said nothing for a long time: threads wait for each other, or one runs for ever."""


def compile_simulation(jar: Path) -> Path:
    """Compile the JVM's side against `jar`, unless it is compiled. Return the class directory."""
    return compiled(SOURCES, compile_harness(), jar)


def _says_something(descriptor: int, seconds: float) -> bool:
    # not `select`, which knows 1,024 descriptors
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


Message = dict[str, Any]


class Jvm:
    """A child JVM. One line goes out, one line comes in."""

    def __init__(self, work_dir: Path, jar: Path | None = None) -> None:
        self.silence_s = SILENCE_S
        self._asked: Message = {}
        self._stands = False
        jar = jar or millpond_jar()
        assert jar is not None
        self.local_dir = work_dir / "local"
        self.local_dir.mkdir(exist_ok=True)
        self.log_path = work_dir / "jvm.log"
        classpath = [compile_simulation(jar), compile_harness(), jar]
        command = java_command(_MAIN, [], classpath=classpath, heap="512m")
        command[1:1] = [
            f"-Djava.io.tmpdir={self.local_dir}",
            "-Xshare:auto",
            "-XX:TieredStopAtLevel=1",
            "-Xss512k",
        ]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ},
            )
        self._buffer = b""
        assert self._receive()["m"] == "ready"

    def _send(self, message: Message) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self) -> Message:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not _says_something(descriptor, self.silence_s):
                self._stands = True
                asked = json.dumps(self._asked)[:200]
                raise Hang(
                    f"the JVM said nothing for {self.silence_s:.0f} s\nit was asked for: {asked}\n"
                    f"its threads:\n{self.threads()}"
                )
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise RuntimeError(
                    f"the JVM ended ({self._process.wait()}):\n{self.log_path.read_text()[-4000:]}"
                )
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return cast(Message, json.loads(line))

    def call(
        self,
        answer: Callable[[Message], Message | None],
        do: str,
        owner: str = "",
        **arguments: Any,
    ) -> Any:
        """Run one command, and return its result.

        `answer` answers all questions of the JVM that come before the result.

        Raises: ProviderError. Hang: at once, if the JVM has stood before.
        """
        if self._stands:
            raise Hang("the JVM stands")
        command = {"do": do, "x": owner, **arguments}
        self._asked = command
        self._send(command)
        while True:
            message = self._receive()
            reply = answer(message)
            if reply is None:
                break
            self._send(reply)
        if "error" in message:
            raise ProviderError(command, message["error"])
        return message["ok"]

    def open_files(self) -> list[str]:
        """Return the files of stores that the JVM has open. Each RocksDB database has some.

        Empty if this system cannot tell.
        """
        found = []
        descriptors = Path(f"/proc/{self._process.pid}/fd")
        for descriptor in descriptors.iterdir() if descriptors.is_dir() else ():
            with contextlib.suppress(OSError):
                path = os.readlink(descriptor)
                if path.startswith(f"{self.local_dir}/") and "/g" in path:
                    found.append(path)
        return sorted(found)

    def threads(self) -> str:
        """Return what the threads of the JVM do now, as far as it tells within half a minute."""
        self._process.send_signal(signal.SIGQUIT)  # the JVM prints them to its stdout
        descriptor = self._process.stdout.fileno() if self._process.stdout is not None else -1
        text = b""
        while _THREADS_END not in text and _says_something(descriptor, _THREADS_S):
            data = os.read(descriptor, 1 << 16)
            if not data:  # it has ended
                break
            text += data
        return text.decode(errors="replace")

    def stop(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
