"""A state store provider behind a pipe: the Python side of `ProviderHarness.scala`.

A `Harness` is one child JVM that serves many examples. `provider.py` has the names of what is in
it. Every call is one line to the JVM and one line back (about 0.2 ms).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import pytest

from integration.jvm import MILLPOND, ROCKSDB, compile_harness, java_command, millpond_jar
from integration.provider import Change, Commit, Cursor, Numbered, Provider, Row, Schema, Store

__all__ = [
    "EVERYTHING",
    "Change",
    "Commit",
    "Cursor",
    "Harness",
    "Numbered",
    "Provider",
    "ProviderError",
    "Row",
    "Schema",
    "Store",
    "millponds_own",
    "module_harness",
    "providers_to_test",
    "short_conf",
]

_MAIN = "org.apache.spark.sql.millpond.testing.ProviderHarness"
_PREFIX = "spark.sql.streaming.stateStore."


class ProviderError(Exception):
    """The provider threw an exception.

    `causes` has class and message of each cause, the outermost first. `condition` is Spark's error
    condition.
    """

    def __init__(self, command: Mapping[str, Any], error: Mapping[str, Any]) -> None:
        self.causes: list[tuple[str, str]] = [(str(c[0]), str(c[1])) for c in error["causes"]]
        self.condition: str | None = error["condition"]
        self.trace: str = error["trace"]
        self.text = "\n".join(f"{name}: {message}" for name, message in self.causes)
        super().__init__(f"{command['do']}: {self.text}\n{self.trace}")


class Harness:
    """One child JVM with a `SparkContext` in it."""

    def __init__(
        self,
        work_dir: Path,
        *,
        conf: Mapping[str, str] | None = None,
        heap: str = "1g",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.work_dir = work_dir
        self.local_dir = Path(tempfile.mkdtemp(dir=work_dir, prefix="local-"))
        jar = millpond_jar()
        classpath = [compile_harness(), *([jar] if jar else [])]
        settings = {"spark.local.dir": str(self.local_dir), **(conf or {})}
        args = [f"{k}={v}" for k, v in settings.items()]
        self.log_path = self.local_dir.with_suffix(".log")
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                java_command(_MAIN, args, classpath=classpath, heap=heap),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(env or {})},
            )
        self._names = itertools.count()
        line = self._out.readline()
        if line.strip() != "ready":
            raise RuntimeError(
                f"harness JVM did not start (said {line!r}):\n{self.log_path.read_text()[-4000:]}"
            )

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._process.pid

    @property
    def _in(self) -> IO[str]:
        return cast(IO[str], self._process.stdin)

    @property
    def _out(self) -> IO[str]:
        return cast(IO[str], self._process.stdout)

    def name(self, kind: str) -> str:
        """Return a name that is new in this JVM."""
        return f"{kind}{next(self._names)}"

    def call_all(self, commands: Sequence[Mapping[str, Any]]) -> list[Any | ProviderError]:
        """Run the commands in order. Return their results or errors, in order.

        An error does not stop the commands after it.
        """
        self._in.write(json.dumps(list(commands)) + "\n")
        self._in.flush()
        line = self._out.readline()
        if not line:
            raise RuntimeError(
                f"harness JVM ended ({self._process.poll()}):\n{self.log_path.read_text()[-4000:]}"
            )
        answers = json.loads(line)
        return [
            ProviderError(c, a["error"]) if "error" in a else a["ok"]
            for c, a in zip(commands, answers, strict=True)
        ]

    def call(self, do: str, **arguments: Any) -> Any:
        """Run one command, and return its result. Raises: ProviderError."""
        (answer,) = self.call_all([{"do": do, **arguments}])
        if isinstance(answer, ProviderError):
            raise answer
        return answer

    def open(
        self,
        root: str | Path,
        *,
        provider_class: str,
        schema: Schema,
        conf: Mapping[str, str] | None = None,
        partition: int = 0,
        operator: int = 0,
        store: str = "default",
        hadoop: Mapping[str, str] | None = None,
        run_id: str | None = None,
    ) -> Provider:
        """Create and initialise a provider.

        root: Spark's checkpointRootLocation, `<checkpoint>/state`.
        """
        name = self.name("p")
        self.call(
            "open",
            p=name,
            **{"class": provider_class},
            root=str(root),
            partition=partition,
            operator=operator,
            store=store,
            key=schema.key,
            value=schema.value,
            spec=dict(schema.spec),
            use_cf=schema.use_cf,
            multi=schema.multi,
            conf=dict(conf or {}),
            hadoop=dict(hadoop or {}),
            run_id=run_id or str(uuid.uuid4()),
        )
        return Provider(self, name, schema)

    def partitions_of(self, keys: Sequence[Row], *, key_schema: str, partitions: int) -> list[int]:
        """Return the partition of each key by Spark's hash partitioning over all columns."""
        return [
            int(p)
            for p in self.call(
                "partition_of", key=key_schema, keys=list(keys), partitions=partitions
            )
        ]

    def spark_partitions_of(
        self,
        keys: Sequence[Row],
        *,
        key_schema: str,
        partitions: int,
        operator: str,
        store: str = "default",
        cf: str = "default",
        format: int | None = None,
        variable: str | None = None,
    ) -> list[int]:
        """Return the partition of each state key by Spark's own `StatePartitionKeyExtractor`.

        variable: `name:type:ttl` of a transformWithState variable.
        """
        answer = self.call(
            "spark_partition_of",
            keys=list(keys),
            key=key_schema,
            partitions=partitions,
            operator=operator,
            store=store,
            cf=cf,
            format=format,
            variable=variable,
        )
        return [int(p) for p in answer]

    def begin(self, do: str, **arguments: Any) -> str:
        """Begin a command. It runs beside later commands. Return its name, for `join`."""
        name = self.name("b")
        self.call(do, beside=name, **arguments)
        return name

    def join(self, name: str) -> Any:
        """Wait for a command of `begin`. Return its result, or raise its error."""
        return self.call("join", name=name)

    def waits(self, name: str) -> bool:
        """Return whether the thread of a command of `begin` waits for another one."""
        return bool(self.call("waits", name=name))

    def kill_task(self, task: str) -> None:
        """Ask the task attempt to end, as Spark does when it kills one."""
        self.call("kill_task", task=task)

    def end_task(self, task: str) -> None:
        """End the task attempt, as Spark does when it completes, fails or is killed."""
        self.call("end_task", task=task)

    def arm(self, point: str, *, kind: str, first: int = 1, last: int = 1) -> None:
        """Let the next passes of a seam of the shim fail with `kind`, from `first` to `last`.

        point: several seams, with blanks between them, are counted as one.
        kind: of a `MillpondException`, or `IO`: an `IOException`, or `HEAP`: an `OutOfMemoryError`.
        """
        self.call("arm", point=point, first=first, last=last, kind=kind)

    def meanwhile(self, point: str, commands: Sequence[Mapping[str, Any]]) -> None:
        """Let another thread run these commands at the next pass of a seam of the shim.

        The thread at the seam waits for that thread, but not for long.
        """
        self.call("meanwhile", point=point, commands=list(commands))

    def happened(self) -> list[Any | ProviderError]:
        """Return the answers of the commands of `meanwhile`.

        Raises: ProviderError: the commands have not ended.
        """
        return [
            ProviderError({"do": "?"}, a["error"]) if "error" in a else a["ok"]
            for a in self.call("happened")
        ]

    def hold(self, point: str) -> None:
        """Hold the thread that passes a seam of the shim next, until `let_go`, but not for long."""
        self.call("hold", point=point)

    def is_holding(self) -> bool:
        """Return whether a thread is held."""
        return self.holds() != ""

    def holds(self) -> str:
        """Return the name of the thread that is held: of the work, if a seam began it."""
        return str(self.call("holds"))

    def let_go(self) -> None:
        """Let the thread that is held go on, and hold no other."""
        self.call("let_go")

    def passes(self) -> int:
        """Return how often threads passed the seam so far."""
        return int(self.call("passes"))

    def disarm(self) -> int:
        """Let nothing fail from now on. Return how often threads passed the seam."""
        return int(self.call("disarm"))

    def report(self) -> dict[str, Any]:
        """Return what an executor tells the driver: `metrics` by name, `stores` as dicts."""
        return cast("dict[str, Any]", self.call("report"))

    def stop(self) -> None:
        """End the JVM in order, and wait for its end."""
        if self._process.poll() is None:
            self._in.close()
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()  # leaves nothing behind; the caller gets the error
                raise
        self._out.close()

    def kill(self) -> None:
        """Kill the JVM with `kill -9`, as a power cut would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=30)
        self._out.close()


def short_conf(values: Mapping[str, Any]) -> dict[str, str]:
    """Return options with full names and with values in Spark's form.

    values: by name below `spark.sql.streaming.stateStore.`.
    """
    return {
        _PREFIX + k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in values.items()
    }


EVERYTHING = os.environ.get("MILLPOND_SHAPES") == "all"
"""Whether to run every case. `make test` runs a sample of cases that are alike."""


def providers_to_test() -> list[str]:
    """Return the providers to test: Millpond's, and Spark's RocksDB store.

    Spark's store proves that the tests are right. `$MILLPOND_TEST_PROVIDERS` (`rocksdb`,
    `millpond`) selects some providers.
    """
    chosen = os.environ.get("MILLPOND_TEST_PROVIDERS", "rocksdb,millpond")
    return [{"rocksdb": ROCKSDB, "millpond": MILLPOND}[name] for name in chosen.split(",")]


millponds_own = pytest.mark.skipif(
    MILLPOND not in providers_to_test(), reason="about what Millpond's store alone has"
)


@pytest.fixture(scope="module")
def module_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Start a JVM for one module. Such a module has the line `harness = module_harness`."""
    started = Harness(tmp_path_factory.mktemp("harness"))
    yield started
    started.stop()
