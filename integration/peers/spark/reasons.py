"""The tests of Spark that do not apply to Millpond, and why: a table that is reviewed.

A test that passes although it is here is an error in this table, and fails the run.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Reason:
    """Tests that fail for one reason. All but `why` are regular expressions.

    Attributes:
        suite: matches the short names of whole suites.
        test: is in the names of the tests.
        error: is in what they say. A test that fails with other words counts as failed.
        why: one line.
    """

    suite: str
    test: str
    error: str
    why: str

    def fits_suite(self, suite: str) -> bool:
        """Return whether `suite`, a short name, is one of this reason's."""
        return re.fullmatch(self.suite, suite) is not None

    def fits(self, suite: str, test: str) -> bool:
        """Return whether the test is one of this reason's."""
        return self.fits_suite(suite) and re.search(self.test, test) is not None


# The Spark checkpoints among the resources of Spark's tests.
_FOREIGN = "MILLPOND_FOREIGN_CHECKPOINT"
_GOLDEN = "It opens a Spark checkpoint that another provider wrote, which Millpond refuses."

REASONS = (
    Reason(
        ".*",
        "SPARK-39650.*sparkVersion=|SPARK-38204: .* prior to 3.3|SPARK-33263"
        r"|SPARK-26187 restore|snapshotStartBatchId on \w+ state$"
        "|recovery from checkpoint uses state format version 1|recovery from Spark ver",
        _FOREIGN,
        _GOLDEN,
    ),
    Reason(
        "(RocksDBWith|HDFSBacked).*StateDataSourceChangeDataReaderSuite",
        "^read stream-stream join state change feed",
        "Results do not match",
        "It wants each write of a batch; a changelog of Millpond's holds the net change of a key.",
    ),
    Reason(
        "StatePartitionAllColumnFamiliesReaderSuite",
        "",
        "STATE_REPARTITION_INVALID_CHECKPOINT.UNSUPPORTED_PROVIDER",
        "It is for Spark's own repartitioning, which takes RocksDB's provider alone.",
    ),
    Reason(
        "StateStoreRDDSuite",
        "versioning and immutability|recovering from files|preferred locations",
        "MILLPOND_STORE_CLOSED",
        "It reads a store after its commit: RocksDB's store refuses that too, no operator does it.",
    ),
    Reason(
        "StateStoreRDDSuite",
        "distributed test|SPARK-51823",
        "Master removed our application",
        "It starts a cluster with the scripts of a Spark build.",
    ),
    Reason(
        "(RocksDBStateStore)?StreamingAggregationSuite",
        "schema check off - state format version 1",
        "Timed out while waiting for failure",
        "It fails with Spark's own stores on Spark 4.3 as well.",
    ),
    Reason(
        "Streaming.*Join.*Suite",
        "SPARK-51779 Restart",
        'because "numInternal',
        "It reads metrics that only RocksDB's store has.",
    ),
    Reason(
        "Streaming.*Join.*Suite",
        "SPARK-51779 Join query using virtual column families with HDFS should fail",
        "Timed out while waiting for failure",
        "The HDFS-backed store must fail, but Millpond is in its place, and has column families.",
    ),
    Reason(
        "StateDataSourceTransformWithStateSuite",
        "snapshotStartBatchId with transformWithState",
        "snapshotUploaded was false",
        "It waits for RocksDB's snapshot files.",
    ),
    Reason(
        "RocksDBWith.*StateDataSourceReader(Snapshot)?Suite",
        "snapshotStartBatchId on join state v[34]",
        "has no snapshot on this lineage",
        "It wants a snapshot of a version of which Millpond's maintenance made none.",
    ),
    Reason(
        "StateDataSourceTransformWithStateSuite",
        "cdf integration - list state and TTL",
        "5 did not equal 6",
        "It wants each write of a batch; a changelog of Millpond's holds the net change of a key.",
    ),
)
