"""What one seed switches on."""

from __future__ import annotations

from dataclasses import dataclass

from integration.harness import short_conf

MINUTE_MS = 60_000


@dataclass(frozen=True)
class Setting:
    """What one seed switches on: the store's options, and how often each thing goes wrong."""

    shape: str = "transform"
    spark_format: int = 1
    storage: str = "local"
    backend: str = "rocksdb"
    budget: str = "64m"
    exact: bool = True
    retain: int = 2
    deltas: int = 1
    warm_up: bool = True
    grace_ms: int = 10 * MINUTE_MS
    partitions: int = 1
    # Floats are probabilities.
    switches: float = 0.0  # that another thread goes first at a seam
    meanwhile: float = 0.3  # that another thread goes on between two actions of a task
    stands: float = 0.0  # that another thread goes first at a storage operation
    storage_faults: float = 0.0
    bodies: bool = False  # reads may return damaged bytes
    local_faults: float = 0.0  # that something goes wrong at a seam
    deaths: float = 0.0  # that the agent dies in a call
    lingers: bool = False  # threads of ended tasks go on with their stores
    large: bool = False
    rows_at_once: int = 3
    gather_bytes: int = 200
    waiting_rows: int = 16384  # a batch with so many changes writes its changelog while it runs
    room_bytes: int = 4096  # for the header of such a changelog
    passes: int = 1  # of maintenance without a use, until a store closes its RocksDB
    struck: str = ""  # things go wrong only at seams that begin so; "": everywhere
    kills: float = 0.0  # that somebody kills an erasure before an operation
    purges: bool = False  # Spark removes old entries from its logs
    plain: bool = False  # files are not compressed

    @property
    def conf(self) -> dict[str, str]:
        conf = {
            "checkpointFormatVersion": self.spark_format,
            "minDeltasForSnapshot": self.deltas,
            "millpond.memory.budget": self.budget,
            "millpond.backend": self.backend,
            "millpond.numKeys.exact": self.exact,
            "millpond.restore.warmUp": self.warm_up,
            "millpond.gc.graceMs": self.grace_ms,
            "millpond.gc.intervalMs": 0,
            "millpond.commit.fsync": False,
            "millpond.lock.acquireTimeoutMs": 0,
        }
        if self.plain:
            conf |= {"millpond.changelog.codec": "none", "millpond.snapshot.compression": "none"}
        return short_conf(conf) | {"spark.sql.streaming.minBatchesToRetain": str(self.retain)}
