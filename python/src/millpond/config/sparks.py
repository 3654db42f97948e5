"""Settings of Spark's own state stores that do nothing on Millpond, and what to set instead.

The shim reads the table from its jar, and logs which of them a user has set.
`millpond/reference.py` writes it for the docs.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.config.table import PREFIX

_STREAMING = "spark.sql.streaming."
_STORE = _STREAMING + "stateStore."
# Any setting below it does nothing: Millpond has a RocksDB of its own, which no user tunes.
SPARKS_ROCKSDB = _STORE + "rocksdb."


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSetting:
    """One setting. `name` is the full name in Spark's configuration."""

    name: str
    option: str | None  # short name of the option of Millpond to set instead; None: there is none
    always: bool = False  # Millpond does it without being asked: nothing is lost, no warning
    doc: str

    @property
    def instead(self) -> str | None:
        """The full name of the option to set instead."""
        return None if self.option is None else PREFIX + self.option


SPARK_SETTINGS: tuple[SparkSetting, ...] = (
    SparkSetting(
        name=SPARKS_ROCKSDB + "boundedMemoryUsage",
        option="memory.budget",
        doc="Millpond's memory is always bounded.",
    ),
    SparkSetting(
        name=SPARKS_ROCKSDB + "maxMemoryUsageMB",
        option="memory.budget",
        doc="It takes `500m` where Spark takes `500`.",
    ),
    SparkSetting(
        name=SPARKS_ROCKSDB + "blockCacheSizeMB",
        option="rocksdb.blockCache",
        doc="One cache for all stores of an executor.",
    ),
    SparkSetting(
        name=SPARKS_ROCKSDB + "trackTotalNumberOfRows",
        option="numKeys.exact",
        doc="The same values.",
    ),
    SparkSetting(
        name=SPARKS_ROCKSDB + "lockAcquireTimeoutMs",
        option="lock.acquireTimeoutMs",
        doc="The same values.",
    ),
    SparkSetting(
        name=SPARKS_ROCKSDB + "compression",
        option="snapshot.compression",
        doc="Of SSTs. It takes fewer codecs.",
    ),
    SparkSetting(
        name=SPARKS_ROCKSDB + "changelogCheckpointing.enabled",
        option=None,
        always=True,
        doc="Millpond writes a changelog for each batch, also with false: nothing to set.",
    ),
    SparkSetting(
        name=_STORE + "compression.codec",
        option="changelog.codec",
        doc="Of changelogs. It takes fewer codecs.",
    ),
    SparkSetting(
        name=_STORE + "maxVersionsToDeletePerMaintenance",
        option="gc.intervalMs",
        doc="The nearest: a collection deletes all that it may.",
    ),
    SparkSetting(
        name=_STREAMING + "ratioExtraSpaceAllowedInCheckpoint",
        option="gc.intervalMs",
        doc="The nearest: a collection deletes all that it may.",
    ),
    SparkSetting(
        name=_STORE + "autoSnapshotRepair.enabled",
        option=None,
        doc="Millpond always goes back to an older snapshot, and a longer chain.",
    ),
    SparkSetting(
        name=_STREAMING + "checkpoint.fileChecksum.enabled",
        option=None,
        doc="Millpond writes no files of checksums: each block of its files has one.",
    ),
    SparkSetting(
        name=_STREAMING + "checkpoint.fileChecksum.skipCreationIfFileMissingChecksum",
        option=None,
        doc="As above.",
    ),
)
