"""What one seed switches on."""

from __future__ import annotations

from dataclasses import dataclass

from integration.harness import short_conf

MINUTE_MS = 60_000


@dataclass(frozen=True)
class Setting:
    """What one seed switches on: the store's options, and how often what goes wrong."""

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
    switches: float = 0.0  # at a seam others go first
    meanwhile: float = 0.3  # between two actions of a task others go on
    stands: float = 0.0  # at a storage operation others go first
    storage_faults: float = 0.0
    bodies: bool = False  # what is read may be damaged
    local_faults: float = 0.0  # at a seam something goes wrong
    deaths: float = 0.0  # in a call the agent dies
    lingers: bool = False  # threads of tasks that have ended go on with their stores
    large: bool = False
    rows_at_once: int = 3
    gather_bytes: int = 200
    struck: str = ""  # where alone something goes wrong at a seam; empty: everywhere

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
        return short_conf(conf) | {"spark.sql.streaming.minBatchesToRetain": str(self.retain)}
