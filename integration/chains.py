"""A chain: one query, taken through adopt, rescale, savepoint, edit, fork, restore and release in random order, run between the steps,
and compared with a batch computation at the end. The seed decides all of it.

A step that makes another Spark checkpoint leaves the old one. A fork leaves a query that can still be run: it is, at the end, and
has to have lost nothing either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millpond
from integration.jvm import MILLPOND, ROCKSDB
from integration.sink_queries import (
    FORMAT,
    PARTITIONS,
    PROVIDER,
    Distinct,
    Transactions,
    distinct,
    file_sink,
    rows_in,
)
from millpond import savepoint
from millpond.errors import ErrorKind, InvalidInputError
from millpond.inspection import verify
from millpond.spark_metadata import read_spark_metadata
from millpond.storage import open_storage

_ON_RESTART = "spark.sql.streaming.stateStore.millpond.rescale.onRestart"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_KEYS = 24
_PARTITIONS = (1, 2, 3, 4, 5, 8)


@dataclass
class Sink:
    """Where a branch of the chain writes to, and what has to be there."""

    path: Path | None  # of a file sink
    format: str
    table: Transactions
    expected: list[str] = field(default_factory=list)

    def __call__(self, writer: DataStreamWriter) -> DataStreamWriter:
        return (
            self.table(writer) if self.path is None else file_sink(self.path, self.format)(writer)
        )

    @property
    def option(self) -> str:
        """What `--file-sink` says of it."""
        return "none" if self.path is None else str(self.path)


@dataclass(frozen=True)
class Branch:
    """A query at a moment: its Spark checkpoint, and the keys that it has seen in how many files."""

    checkpoint: Path
    provider: str
    partitions: int
    sink: Sink
    seen: frozenset[str] = frozenset()
    files: int = 0


class Chain:
    """One chain. `trace`: what was done, for the message of a failure."""

    def __init__(self, spark: SparkSession, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory, self.trace = directory, [f"seed {seed}"]
        self.spark_format = self.random.choice((1, 2))
        self.kind = self.random.choice(("parquet", "json", "transactions"))
        conf = {FORMAT: str(self.spark_format), _CHANGELOG: "true"}
        self.query: Distinct = distinct(spark, directory, **conf)
        self.written: list[list[str]] = []
        self.made = 0
        provider = self.random.choice((MILLPOND, ROCKSDB))
        self.now = Branch(self._new("checkpoint"), provider, 2, self._sink())
        self.saved: tuple[Path, Branch, int] | None = None  # and its batch
        self.left: list[Branch] = []
        self.trace.append(f"format {self.spark_format}, {self.kind}, {provider.rpartition('.')[2]}")

    # ---- the whole of it

    def play(self) -> None:
        """Do all of it. Raises: AssertionError: rows, state or sink are not what a batch computation gives."""
        self.run()
        for _ in range(self.random.randint(3, 6)):
            name = self.random.choice(list(self._possible()))
            self.trace.append(name)
            getattr(self, name)()
            if self.random.random() < 0.8:
                self.run()
        for branch in [*self.left, self.now]:
            self.now = branch
            self.run(0 if branch.files < len(self.written) else 1)
            self.compare()

    def _possible(self) -> Iterator[str]:
        if self.now.provider == ROCKSDB:
            yield "adopt"
            return
        yield from ("rescale", "rescale", "rescale_on_restart", "save", "release")
        if len(self.left) < 1:
            yield "fork"
        if self.saved is not None:
            yield from ("edit", "restore", "restore")

    def run(self, files: int | None = None, conf: Mapping[str, str] = MappingProxyType({})) -> None:
        """Run the query over some more files, a batch each."""
        for _ in range(self.random.randint(1, 2) if files is None else files):
            keys = [f"k{self.random.randrange(_KEYS)}" for _ in range(4)]
            self.query.input.add([{"key": key} for key in keys])
            self.written.append(keys)
        base = {PROVIDER: self.now.provider, PARTITIONS: str(self.now.partitions)}
        self.query.run(self.now.checkpoint, self.now.sink, **{**base, **conf})
        seen = set(self.now.seen)
        for keys in self.written[self.now.files :]:
            self.now.sink.expected += sorted(set(keys) - seen)
            seen |= set(keys)
        self.now = replace(self.now, seen=frozenset(seen), files=len(self.written))

    def compare(self) -> None:
        """Compare the sink, and the state, with what a batch computation gives."""
        sink, checkpoint = self.now.sink, self.now.checkpoint
        if sink.path is None:
            found = sorted(sink.table.rows)
            assert sink.table.left_out == [], "a number came twice, or went back"
        else:
            found = rows_in(self.query.spark, sink.path, sink.format)
        assert found == sorted(sink.expected), "rows of the sink"
        if self.now.provider == MILLPOND:
            keys = [row["key"] for row in millpond.read_state(checkpoint)["key"].to_pylist()]
            assert sorted(keys) == sorted(self.now.seen), "keys of the state"
            assert verify(open_storage(str(checkpoint)), str(checkpoint)).problems == []

    # ---- steps

    def rescale(self) -> None:
        """In place; the sink is found."""
        partitions = self._other_partitions()
        known = (
            self.now.checkpoint / "millpond/sink.json"
        ).exists()  # not of a fork that was not run yet, and has no files
        report = millpond.rescale(
            self.now.checkpoint, partitions, file_sink=None if known else "none"
        )
        found = (report.file_sink or "none").removeprefix("file:")
        assert (found, report.warnings) == (self.now.sink.option, ())
        self.now = replace(self.now, partitions=partitions)

    def rescale_on_restart(self) -> None:
        """By the start of the query."""
        partitions = self._other_partitions()
        self.run(conf={_ON_RESTART: "true", PARTITIONS: str(partitions)})
        self.now = replace(self.now, partitions=partitions)
        assert read_spark_metadata(open_storage(str(self.now.checkpoint))).partitions == partitions

    def save(self) -> None:
        """A savepoint, in one of its formats."""
        place = self._new("saved")
        report = savepoint.create(
            self.now.checkpoint, place, format=self.random.choice(("native", "canonical"))
        )
        self.saved = (place, self.now, report.batch)

    def edit(self) -> None:
        """The savepoint forgets some keys."""
        assert self.saved is not None
        place, branch, batch = self.saved
        forgotten = frozenset(key for key in sorted(branch.seen) if self.random.random() < 0.3)

        def function(rows: pa.RecordBatch) -> pa.RecordBatch:
            keys = pc.struct_field(rows["key"], "key")
            return rows.filter(pc.invert(pc.is_in(keys, pa.array(sorted(forgotten), pa.string()))))

        edited = self._new("edited")
        savepoint.edit(place, edited, function=function)
        self.saved = (edited, replace(branch, seen=branch.seen - forgotten), batch)

    def restore(self) -> None:
        """As a move, where the sink allows it, or with a sink of its own."""
        assert self.saved is not None
        place, branch, batch = self.saved
        partitions = self.random.choice((None, *_PARTITIONS))
        target = self._new("restored")
        last = read_spark_metadata(
            open_storage(str(self.now.checkpoint)), batches=()
        ).last_committed_batch
        moved = batch == last and self.now.provider == MILLPOND and branch.sink is self.now.sink
        sink = self.now.sink if moved else self._sink()
        if not moved and branch.sink is self.now.sink and sink.path is not None:
            self._refused(
                lambda: savepoint.restore(
                    place, target, keep_query_id=True, file_sink=branch.sink.option
                )
            )
        savepoint.restore(
            place, target, keep_query_id=moved, partitions=partitions, file_sink=sink.option
        )
        self.now = replace(
            branch, checkpoint=target, sink=sink, partitions=partitions or branch.partitions
        )

    def fork(self) -> None:
        """The chain goes on with the fork; the query that it is of goes on too."""
        target, sink = self._new("forked"), self._sink()
        if sink.path is not None:
            self._refused(
                lambda: savepoint.fork(self.now.checkpoint, target, file_sink=self.now.sink.option)
            )
        assert savepoint.fork(self.now.checkpoint, target, file_sink=sink.option).warnings == ()
        self.left.append(self.now)
        self.now = replace(self.now, checkpoint=target, sink=sink)

    def release(self) -> None:
        """To Spark's own store; numbers and sink go on."""
        target = self._new("released")
        millpond.release(self.now.checkpoint, target, provider="rocksdb")
        self.now = replace(self.now, checkpoint=target, provider=ROCKSDB)

    def adopt(self) -> None:
        """Back again."""
        target = self._new("adopted")
        millpond.adopt(self.now.checkpoint, target)
        self.now = replace(self.now, checkpoint=target, provider=MILLPOND)
        self.run()  # only then is it known where it writes to

    # ---- parts of steps

    def _refused(self, call: Callable[[], object]) -> None:
        try:
            call()
        except InvalidInputError as e:
            assert e.kind is ErrorKind.FILE_SINK_MISMATCH, e
        else:
            raise AssertionError("two queries were let write to one sink")

    def _other_partitions(self) -> int:
        chosen = self.random.choice([n for n in _PARTITIONS if n != self.now.partitions])
        self.trace.append(f"to {chosen}")
        return chosen

    def _sink(self) -> Sink:
        path = None if self.kind == "transactions" else self._new("out")
        return Sink(path, self.kind, Transactions("it"))

    def _new(self, what: str) -> Path:
        self.made += 1
        return self.directory / f"{what}-{self.made}"
