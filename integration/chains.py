"""Takes a query through a chain of random commands. Compares it with a batch computation.

The commands are adopt, rescale, savepoint, edit, fork, restore and release. Between them the query
runs. The seed decides everything. Sixteen seeds in a row have each sink in each Spark checkpoint
format.

A command that makes another Spark checkpoint leaves the old one. After a fork, both queries can go
on. The chain goes on with the fork. At its end it runs the other query too. That query must also
have lost nothing.

Each run compares the numbers of its batches. The end compares the state and the sink: all rows of
files and of `foreachBatch`, and the memory sink's table. Spark continues that table in complete
mode only. The console keeps nothing to compare. Kafka is not here, because it needs a broker.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
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
from millpond.operations.inspect import verify
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import open_storage

_ON_RESTART = "spark.sql.streaming.stateStore.millpond.rescale.onRestart"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_KEYS = 24
_PARTITIONS = (1, 2, 3, 4, 5, 8)
_FILES = ("parquet", "json", "csv", "orc", "text")
_TRANSACTIONS, _MEMORY, _CONSOLE = "transactions", "memory", "console"
_SINKS = (*_FILES, _TRANSACTIONS, _MEMORY, _CONSOLE)


class Counts(Distinct):
    """Counts each key, and writes all counts in each batch. For the memory sink."""

    def frame(self) -> DataFrame:
        """Return the stream."""
        return self.input.stream(self.spark).groupBy("key").count()


@dataclass
class Sink:
    """The place where a branch of the chain writes, and the rows that must be there."""

    kind: str
    place: Path  # of files; the table in memory has its name
    table: Transactions
    expected: list[str] = field(default_factory=list)

    def __call__(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.is_file:
            return file_sink(self.place, self.kind)(writer)
        if self.kind == _MEMORY:
            return writer.format(_MEMORY).outputMode("complete").queryName(self.name)
        return writer.format(_CONSOLE) if self.kind == _CONSOLE else self.table(writer)

    @property
    def is_file(self) -> bool:
        return self.kind in _FILES

    @property
    def name(self) -> str:
        """Return the name of the table in memory."""
        return self.place.name.replace("-", "_")

    @property
    def option(self) -> str:
        """Return the value of `--file-sink` for this sink."""
        return str(self.place) if self.is_file else "none"


@dataclass(frozen=True)
class Branch:
    """A query at a moment.

    `number`: the last batch number that the query or a rescale used. `seen`: how often each key
    came, in `files` files.
    """

    checkpoint: Path
    provider: str
    partitions: int
    sink: Sink
    number: int = -1
    seen: Mapping[str, int] = field(default_factory=dict)
    files: int = 0


class Chain:
    """One chain. `trace` has its steps, for the message of a failure."""

    def __init__(self, spark: SparkSession, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory, self.trace = directory, [f"seed {seed}"]
        formats, kind = divmod(seed - 1, len(_SINKS))
        self.spark_format, self.kind = 1 + formats % 2, _SINKS[kind]
        query = distinct(spark, directory, **{FORMAT: str(self.spark_format), _CHANGELOG: "true"})
        counts = Counts(spark, query.input, query.conf)
        self.query = counts if self.kind == _MEMORY else query
        self.written: list[list[str]] = []
        self.made = 0
        provider = self.random.choice((MILLPOND, ROCKSDB))
        self.now = Branch(self._new("checkpoint"), provider, 2, self._sink())
        self.past: Branch | None = None  # before the last run
        self.saved: tuple[Path, Branch] | None = None
        self.edited = False
        self.left: list[Branch] = []
        self.trace.append(f"format {self.spark_format}, {self.kind}, {provider.rpartition('.')[2]}")

    # ---- the whole chain

    def play(self) -> None:
        """Play the whole chain.

        Raises: AssertionError: rows, state or sink differ from the batch computation.
        """
        self.run()
        done: Counter[str] = Counter()
        for _ in range(self.random.randint(4, 8)):
            possible = list(self._possible())
            # Draw two commands, and take the rarer one. Otherwise few chains restore an edited
            # savepoint.
            names = self.random.choice(possible), self.random.choice(possible)
            name = min(names, key=lambda name: done[name])
            done[name] += 1
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
        yield from ("rescale", "rescale_on_restart", "save", "release")
        if len(self.left) < 1:
            yield "fork"
        if self.saved is not None:
            yield "restore"
            yield "restore" if self.edited else "edit"

    def run(self, files: int | None = None, conf: Mapping[str, str] = MappingProxyType({})) -> None:
        """Run the query over more files, one batch for each."""
        for _ in range(self.random.randint(1, 2) if files is None else files):
            keys = [f"k{self.random.randrange(_KEYS)}" for _ in range(4)]
            self.query.input.add([{"key": key} for key in keys])
            self.written.append(keys)
        base = {PROVIDER: self.now.provider, PARTITIONS: str(self.now.partitions)}
        query = self.query.start(self.now.checkpoint, self.now.sink, **{**base, **conf})
        query.awaitTermination()
        self.past, number, seen = self.now, self.now.number, Counter(self.now.seen)
        for keys in self.written[self.now.files :]:
            self.now.sink.expected += sorted(set(keys) - set(seen))
            seen.update(keys)
            number += 1
        found = [progress["batchId"] for progress in query.recentProgress]
        assert found == list(range(self.now.number + 1, number + 1)), "numbers of the batches"
        self.now = replace(self.now, number=number, seen=seen, files=len(self.written))

    def compare(self) -> None:
        """Compare the sink and the state with the batch computation."""
        sink, checkpoint = self.now.sink, self.now.checkpoint
        if sink.is_file:
            rows = rows_in(self.query.spark, sink.place, sink.kind)
            assert rows == sorted(sink.expected), "rows of the sink"
        elif sink.kind == _MEMORY:
            counts = self.query.spark.table(sink.name).collect()
            assert sorted(counts) == sorted(self.now.seen.items()), "the table in memory"
        elif sink.kind == _TRANSACTIONS:
            assert sorted(sink.table.rows) == sorted(sink.expected), "rows of the sink"
            assert sink.table.left_out == [], "a number came twice, or went back"
        if self.now.provider == MILLPOND:
            state = millpond.read_state(checkpoint)
            keys = state["key"].to_pylist()
            assert sorted(row["key"] for row in keys) == sorted(self.now.seen), "keys of the state"
            if self.kind == _MEMORY:
                counted = zip(keys, state["value"].to_pylist(), strict=True)
                found = {key["key"]: value["count"] for key, value in counted}
                assert found == self.now.seen, "counts of the state"
            assert verify(open_storage(str(checkpoint)), str(checkpoint)).problems == []

    # ---- steps

    def rescale(self) -> None:
        """Rescale in place. The command finds the sink itself, if the query wrote it down."""
        partitions = self._other_partitions()
        # A fork to no files writes its sink down only when it runs.
        known = (self.now.checkpoint / "millpond/sink.json").exists()
        told = None if known else "none"
        report = millpond.rescale(self.now.checkpoint, partitions, file_sink=told)
        found = (report.file_sink or "none").removeprefix("file:")
        assert (found, report.warnings) == (self.now.sink.option, ())
        self.now = replace(self.now, number=report.batch, partitions=partitions)

    def rescale_on_restart(self) -> None:
        """Let the start of the query rescale it."""
        partitions = self._other_partitions()
        self.now = replace(self.now, number=self.now.number + 1, partitions=partitions)
        self.run(conf={_ON_RESTART: "true"})
        assert read_spark_metadata(open_storage(str(self.now.checkpoint))).partitions == partitions

    def save(self) -> None:
        """Make a savepoint, in one of its formats."""
        place, format = self._new("saved"), self.random.choice(("native", "canonical"))
        branch = self._moment()
        savepoint.create(branch.checkpoint, place, format=format, batch=branch.number)
        self.saved, self.edited = (place, branch), False

    def edit(self) -> None:
        """Remove some keys from the savepoint."""
        assert self.saved is not None
        place, branch = self.saved
        forgotten = {key for key in sorted(branch.seen) if self.random.random() < 0.3}

        def function(rows: pa.RecordBatch) -> pa.RecordBatch:
            keys = pc.struct_field(rows["key"], "key")
            return rows.filter(pc.invert(pc.is_in(keys, pa.array(sorted(forgotten), pa.string()))))

        edited = self._new("edited")
        savepoint.edit(place, edited, function=function)
        kept = {key: count for key, count in branch.seen.items() if key not in forgotten}
        self.saved, self.edited = (edited, replace(branch, seen=kept)), True

    def restore(self) -> None:
        """Restore the savepoint: as a move if the sink allows it, else with a new sink."""
        assert self.saved is not None
        place, branch = self.saved
        partitions = self.random.choice((None, *_PARTITIONS))
        target = self._new("restored")
        same = branch.sink is self.now.sink
        moved = same and branch.number == self.now.number and self.now.provider == MILLPOND
        sink = self.now.sink if moved else self._sink()
        if same and not moved and sink.is_file:
            old = branch.sink.option
            self._refused(
                lambda: savepoint.restore(place, target, keep_query_id=True, file_sink=old)
            )
        savepoint.restore(
            place, target, keep_query_id=moved, partitions=partitions, file_sink=sink.option
        )
        made = replace(branch, checkpoint=target, sink=sink)
        self._start_from(replace(made, partitions=partitions or branch.partitions))

    def fork(self) -> None:
        """Fork the query. The chain goes on with the fork; its end runs the old query too."""
        branch, target, sink = self._moment(), self._new("forked"), self._sink()
        origin, batch, old = branch.checkpoint, branch.number, branch.sink.option
        if sink.is_file:
            self._refused(lambda: savepoint.fork(origin, target, batch=batch, file_sink=old))
        made = savepoint.fork(origin, target, batch=batch, file_sink=sink.option)
        assert made.warnings == ()
        self.left.append(self.now)
        self._start_from(replace(branch, checkpoint=target, sink=sink))

    def release(self) -> None:
        """Release the query to Spark's own store. Batch numbers and sink go on."""
        target = self._new("released")
        millpond.release(self.now.checkpoint, target, provider="rocksdb")
        self.now = replace(self.now, checkpoint=target, provider=ROCKSDB)

    def adopt(self) -> None:
        """Adopt the query from Spark's own store."""
        target = self._new("adopted")
        millpond.adopt(self.now.checkpoint, target)
        self.now = replace(self.now, checkpoint=target, provider=MILLPOND)
        self.run()  # the start of the query writes its sink down

    # ---- parts of steps

    def _refused(self, call: Callable[[], object]) -> None:
        try:
            call()
        except InvalidInputError as e:
            assert e.kind is ErrorKind.FILE_SINK_MISMATCH, e
        else:
            raise AssertionError("millpond let two queries write to one sink")

    def _start_from(self, branch: Branch) -> None:
        """Go on with `branch`. First run the rest of the input, so that no batch is unfinished."""
        self.now = branch
        if branch.files < len(self.written):
            self.run(0)

    def _moment(self) -> Branch:
        """Return the query as it is, or as it was before its last run."""
        past = self.past
        if past is None or past.checkpoint != self.now.checkpoint or past.number < 0:
            return self.now
        chosen = self.random.choice((self.now, past))
        self.trace.append(f"at batch {chosen.number}")
        return chosen

    def _other_partitions(self) -> int:
        chosen = self.random.choice([n for n in _PARTITIONS if n != self.now.partitions])
        self.trace.append(f"to {chosen}")
        return chosen

    def _sink(self) -> Sink:
        return Sink(self.kind, self._new("out"), Transactions("it"))

    def _new(self, what: str) -> Path:
        self.made += 1
        return self.directory / f"{what}-{self.made}"
