"""A model of rows that end: when a row was last written, and when its time is over."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from integration.provider import Timed
from millpond.state.ages import AGE_BYTES

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def age_at(timed: Timed) -> int:
    """Return the age that a batch gives what it writes.

    It is the batch's time in seconds, rounded up to a 64th of the time to live.
    """
    width = max(1, timed.ttl_ms // 1000 // 64)
    seconds = -(-timed.now_ms // 1000)
    return -(-seconds // width) * width


def age_of(value: bytes) -> int | None:
    """Return the age behind a value, as it is stored; None: it has none."""
    behind = (len(value) - 1) % 8
    assert behind in (0, AGE_BYTES), value
    return int.from_bytes(value[-AGE_BYTES:], "little") if behind else None


@dataclass
class Aged(Generic[K, V]):
    """The rows of a store: values, and ages in seconds. None: a row has no age."""

    rows: dict[K, tuple[V, int | None]] = field(default_factory=dict)

    def copy(self) -> Aged[K, V]:
        """Return the same rows, to be changed on their own."""
        return Aged(dict(self.rows))

    def begin(self, timed: Timed | None) -> int:
        """Begin a batch. Return how many rows end."""
        if timed is None:
            return 0
        over = [
            key
            for key, (_, age) in self.rows.items()
            if age is not None and age * 1000 + timed.ttl_ms <= timed.now_ms
        ]
        for key in over:
            del self.rows[key]
        for key, (value, age) in self.rows.items():
            if age is None:
                self.rows[key] = value, age_at(timed)
        return len(over)

    def write(self, key: K, value: V, timed: Timed | None) -> None:
        """Write a row."""
        self.rows[key] = value, None if timed is None else age_at(timed)

    def values(self) -> dict[K, V]:
        """Return the rows without their ages."""
        return {key: value for key, (value, _) in self.rows.items()}


@dataclass
class Replayed:
    """What a count by key must have written: rows (key, count, sum of `v`) by batch, sorted; and
    how many rows ended.
    """

    batches: dict[int, list[list[object]]] = field(default_factory=dict)
    ended: int = 0


def replayed(checkpoint: Path, ttl_ms: int) -> Replayed:
    """Do the batches of a count over parquet files again, by Spark's logs: which files each batch
    took, and at what time.
    """
    model: Aged[str, tuple[int, int]] = Aged()
    result = Replayed()
    files_by_offset = files_of(checkpoint)
    done = -1
    for log in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        batch, lines = int(log.name), log.read_text().splitlines()
        timed = Timed(json.loads(lines[1])["batchTimestampMs"], ttl_ms)
        # Two, if the driver was killed after the source had noted the next file: the run that
        # followed noted one more before its first batch.
        offsets = range(done + 1, json.loads(lines[2])["logOffset"] + 1)
        done = offsets.stop - 1
        files = [file for offset in offsets for file in sorted(files_by_offset[offset])]
        result.ended += model.begin(timed)
        counts: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        for file in files:
            for row in pq.read_table(file).to_pylist():
                counts[row["k"]] += 1
                sums[row["k"]] += row["v"]
        for key, rows in counts.items():
            before = model.values().get(key, (0, 0))
            model.write(key, (before[0] + rows, before[1] + sums[key]), timed)
        result.batches[batch] = sorted([key, *model.values()[key]] for key in counts)
    return result


def files_of(checkpoint: Path) -> dict[int, set[Path]]:
    """Return the files of each offset, from the log of the one source, which Spark compacts."""
    found: dict[int, set[Path]] = defaultdict(set)
    for log in (checkpoint / "sources" / "0").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            found[entry["batchId"]].add(Path(unquote(urlparse(entry["path"]).path)))
    return found
