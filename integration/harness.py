"""A state store provider behind a pipe: the Python side of `ProviderHarness.scala`.

A `Harness` is one child JVM that serves many examples. `Provider` and `Store` are names of objects
in it. Every call is one line to the JVM and one line back (about 0.2 ms). Rows are lists of simple
values, in the order of the schema's columns: bytes are base64 text, decimals are text, nested
structs are lists.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import pytest

from integration.jvm import MILLPOND, ROCKSDB, compile_harness, java_command, millpond_jar

Row = list[Any]
Change = tuple[str, Row, "Row | None", int]
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


@dataclass(frozen=True)
class Commit:
    """The answer of a commit. `id` and `base_id` are None in Spark checkpoint format 1."""

    version: int
    id: str | None
    base_id: str | None


@dataclass(frozen=True)
class Schema:
    """Key and value columns as DDL text, and the key encoder.

    The encoder is `{"type": "none" | "prefix" | "range" | "ts_prefix" | "ts_postfix", ...}`.
    """

    key: str = "k string, n bigint"
    value: str = "v string, w bigint"
    spec: Mapping[str, Any] = field(default_factory=lambda: {"type": "none"})
    use_cf: bool = False
    multi: bool = False


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
            run_id=str(uuid.uuid4()),
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

    def kill_task(self, task: str) -> None:
        """Ask the task attempt to end, as Spark does when it kills one."""
        self.call("kill_task", task=task)

    def end_task(self, task: str) -> None:
        """End the task attempt, as Spark does when it completes, fails or is killed."""
        self.call("end_task", task=task)

    def arm(self, point: str, *, kind: str, first: int = 1, last: int = 1) -> None:
        """Let the next passes of a seam of the shim fail with `kind`, from `first` to `last`."""
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

    def disarm(self) -> int:
        """Let nothing fail from now on. Return how often threads passed the seam."""
        return int(self.call("disarm"))

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


@dataclass(frozen=True)
class Numbered:
    """Rows of the schema `bigint -> string` that the JVM makes.

    Tag and number decide the text of each row. With an empty tag the JVM removes the rows.
    """

    until: int
    tag: str
    length: int = 0  # of each text, in bytes
    first: int = 0
    step: int = 1

    def arguments(self) -> dict[str, Any]:
        """Return these rows as arguments of a command."""
        return {
            "from": self.first,
            "until": self.until,
            "step": self.step,
            "tag": self.tag,
            "bytes": self.length,
        }


@dataclass(frozen=True)
class Provider:
    """A provider in the harness JVM."""

    harness: Harness
    name: str
    schema: Schema

    def store(
        self,
        version: int,
        id: str | None = None,
        *,
        force_snapshot: bool = False,
        load_empty: bool = False,
        task: str | None = None,
    ) -> Store:
        """Call `getStore`. `task` names the task attempt that asks."""
        s = self.harness.name("s")
        self.harness.call(
            "get_store",
            p=self.name,
            s=s,
            version=version,
            id=id,
            force_snapshot=force_snapshot,
            load_empty=load_empty,
            task=task,
        )
        return Store(self, s)

    def read_store(self, version: int, id: str | None = None, *, task: str | None = None) -> Store:
        """Call `getReadStore`. `task` names the task attempt that asks."""
        s = self.harness.name("s")
        self.harness.call("get_read_store", p=self.name, s=s, version=version, id=id, task=task)
        return Store(self, s)

    def upgrade(self, read: Store, version: int, id: str | None = None) -> Store:
        """Call `upgradeReadStoreToWriteStore`."""
        s = self.harness.name("s")
        self.harness.call(
            "upgrade", p=self.name, s=s, **{"from": read.name}, version=version, id=id
        )
        return Store(self, s)

    def replay(
        self,
        snapshot: int,
        version: int,
        *,
        snapshot_id: str | None = None,
        id: str | None = None,
        read: bool = True,
        read_only: bool = True,
    ) -> Store:
        """Call `replayReadStateFromSnapshot`, or with `read=False` `replayStateFromSnapshot`."""
        s = self.harness.name("s")
        self.harness.call(
            "replay",
            p=self.name,
            s=s,
            snapshot=snapshot,
            version=version,
            snapshot_id=snapshot_id,
            id=id,
            read=read,
            read_only=read_only,
        )
        return Store(self, s)

    def changes(
        self, start: int, version: int, *, cf: str | None = None, id: str | None = None
    ) -> list[Change]:
        """Read all of `getStateStoreChangeDataReader`: (type, key, value or None, batch)."""
        answer = self.harness.call(
            "changes", p=self.name, start=start, version=version, cf=cf, id=id
        )
        return [(kind, key, value, batch) for kind, key, value, batch in answer]

    def snapshot(self) -> None:
        """Call `doSnapshotMaintenance`, on this command's thread."""
        self.harness.call("snapshot", p=self.name)

    def cleanup(self) -> None:
        """Call `doCleanupMaintenance`, on this command's thread."""
        self.harness.call("cleanup", p=self.name)

    def close(self) -> None:
        """Call `close` and `setUnloaded`. The JVM forgets its stores and iterators."""
        self.harness.call("close", p=self.name)


@dataclass(frozen=True)
class Store:
    """A store or read store in the harness JVM."""

    provider: Provider
    name: str

    def _call(self, do: str, **arguments: Any) -> Any:
        return self.provider.harness.call(do, s=self.name, **arguments)

    def get(self, key: Row, **cf: str) -> Row | None:
        """Return the value of a key, or None."""
        return cast("Row | None", self._call("get", k=key, **cf))

    def get_both(self, key: Row, other: Row) -> list[Row | None]:
        """Get two values. Read both only after the second `get`."""
        return cast("list[Row | None]", self._call("get_both", k=key, k2=other))

    def multi_get(self, keys: Sequence[Row], **cf: str) -> list[Row | None]:
        """Call `multiGet`. Return a value or None for each key."""
        return cast("list[Row | None]", self._call("multi_get", keys=list(keys), **cf))

    def values(self, key: Row, **cf: str) -> list[Row]:
        """Read `valuesIterator` to its end."""
        return cast("list[Row]", self._call("values", k=key, **cf))

    def exists(self, key: Row, **cf: str) -> bool:
        """Call `keyExists`."""
        return bool(self._call("exists", k=key, **cf))

    def put(self, key: Row, value: Row, **cf: str) -> None:
        """Call `put`."""
        self._call("put", k=key, v=value, **cf)

    def put_many(self, rows: Sequence[tuple[Row, Row]], **cf: str) -> None:
        """Call `put` for each pair, with one line over the pipe."""
        self._call("put_many", rows=[list(r) for r in rows], **cf)

    def put_numbered(self, layer: Numbered) -> None:
        """Call `put` (or `remove`) for rows that the JVM makes."""
        self._call("put_numbered", **layer.arguments())

    def check_numbered(self, layers: Sequence[Numbered]) -> int:
        """Check that the store has the layers' rows, the last on top. Return their number."""
        return int(self._call("check_numbered", layers=[layer.arguments() for layer in layers]))

    def remove(self, key: Row, **cf: str) -> None:
        """Call `remove`."""
        self._call("remove", k=key, **cf)

    def put_list(self, key: Row, values: Sequence[Row], **cf: str) -> None:
        """Call `putList`."""
        self._call("put_list", k=key, v=list(values), **cf)

    def merge(self, key: Row, value: Row, **cf: str) -> None:
        """Call `merge`."""
        self._call("merge", k=key, v=value, **cf)

    def merge_blanks(self, key: Row, length: int, **cf: str) -> None:
        """Call `merge` with a row of one text of `length` blanks."""
        self._call("merge_blanks", k=key, length=length, **cf)

    def merge_list(self, key: Row, values: Sequence[Row], **cf: str) -> None:
        """Call `mergeList`."""
        self._call("merge_list", k=key, v=list(values), **cf)

    def delete_range(self, begin: Row, end: Row, **cf: str) -> None:
        """Call `deleteRange`: `[begin, end)` in the order of encoded keys."""
        self._call("delete_range", **{"from": begin}, to=end, **cf)

    def create_cf(self, name: str, schema: Schema, *, internal: bool = False) -> None:
        """Call `createColFamilyIfAbsent`."""
        self._family("create_cf", name, schema, internal)

    def register_cf(self, name: str, schema: Schema, *, internal: bool = False) -> None:
        """Call `registerColFamily`."""
        self._family("register_cf", name, schema, internal)

    def _family(self, do: str, name: str, schema: Schema, internal: bool) -> None:
        self._call(
            do,
            cf=name,
            key=schema.key,
            value=schema.value,
            spec=dict(schema.spec),
            multi=schema.multi,
            internal=internal,
        )

    def remove_cf(self, name: str) -> bool:
        """Call `removeColFamilyIfExists`."""
        return bool(self._call("remove_cf", cf=name))

    def cf_names(self) -> list[str]:
        """Return `allColumnFamilyNames`, sorted."""
        return cast("list[str]", self._call("cf_names"))

    def scan(self, **arguments: Any) -> list[tuple[Row, Row]]:
        """Return all pairs, in the provider's order.

        `scan="prefix", k=[...]` or `scan="range"` returns a part.
        """
        return [(k, v) for k, v in self._call("scan", **arguments)]

    def iterate(self, **arguments: Any) -> Cursor:
        """Open an iterator and leave it open."""
        it = self.provider.harness.name("i")
        self._call("iter_open", it=it, **arguments)
        return Cursor(self.provider.harness, it)

    def commit(self) -> Commit:
        """Call `commit` and `getStateStoreCheckpointInfo`. They must agree on the version."""
        answer = self._call("commit")
        if answer["version"] != answer["info_version"]:
            raise AssertionError(
                f"commit returned {answer['version']}, getStateStoreCheckpointInfo"
                f" {answer['info_version']}"
            )
        return Commit(answer["version"], answer["id"], answer["base_id"])

    def abort(self) -> None:
        """Call `abort`."""
        self._call("abort")

    def release(self) -> None:
        """Call `release` of a read store."""
        self._call("release")

    def keys(self) -> int:
        """Return `metrics.numKeys`."""
        return int(self._call("metrics")["keys"])

    def metrics(self) -> dict[str, Any]:
        """Return `keys`, `memory_bytes`, `custom` and `instance`; the last two by name.

        An undeclared custom metric is an error.
        """
        return cast("dict[str, Any]", self._call("metrics"))


@dataclass(frozen=True)
class Cursor:
    """An open iterator."""

    harness: Harness
    name: str

    def next(
        self, count: int = 1, *, remove: bool = False, lazily: bool = False
    ) -> list[tuple[Row, Row]]:
        """Return up to `count` pairs; -1: the rest.

        remove: remove each key before its pair is read. lazily: call `hasNext` only right before
        `next`.
        """
        return [
            (k, v)
            for k, v in self.harness.call(
                "iter_next", it=self.name, n=count, remove=remove, lazily=lazily
            )
        ]

    def seek(self, prefix: Row) -> None:
        """Call `refreshAndSeekToPrefix`. The iterator must be opened with `scan="reusable"`."""
        self.harness.call("iter_seek", it=self.name, k=prefix)

    def close(self) -> None:
        """Close the iterator. A second call does nothing."""
        self.harness.call("iter_close", it=self.name)


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


@pytest.fixture(scope="module")
def module_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Start a JVM for one module. Such a module has the line `harness = module_harness`."""
    started = Harness(tmp_path_factory.mktemp("harness"))
    yield started
    started.stop()
