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
        other_spark: only where the tests are those of another minor version than the Spark that
            runs.
    """

    suite: str
    test: str
    error: str
    why: str
    other_spark: bool = False

    def fits_suite(self, suite: str) -> bool:
        """Return whether `suite`, a short name, is one of this reason's."""
        return re.fullmatch(self.suite, suite) is not None

    def fits(self, suite: str, test: str) -> bool:
        """Return whether the test is one of this reason's."""
        return self.fits_suite(suite) and re.search(self.test, test) is not None


# The Spark checkpoints among the resources of Spark's tests.
_FOREIGN = "MILLPOND_FOREIGN_CHECKPOINT"
_GOLDEN = "It opens a Spark checkpoint that another provider wrote, which Millpond refuses."
_OTHER_WORDS = "It wants a refusal in the words or the class of RocksDB's store."
_ALSO_SPARKS = "It fails with Spark's own stores on Spark 4.3 as well."

REASONS = (
    Reason(
        ".*",
        "SPARK-39650.*sparkVersion=|SPARK-38204: .* starts from checkpoint in|SPARK-33263"
        "|SPARK-53942: stateful|SPARK-26187 restore|recover from a Spark v2.1 checkpoint"
        r"|snapshotStartBatchId on \w+ state$"
        "|recovery from checkpoint uses state format version 1|recovery from Spark ver",
        _FOREIGN,
        _GOLDEN,
    ),
    Reason("StreamingStateStoreFormatCompatibilitySuite", "", f"{_FOREIGN}|getCondition", _GOLDEN),
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
        "(StateStoreRDD|TransformWithStateCluster)Suite",
        "distributed test|SPARK-51823|without initial state - useImplicits = true"
        "|with initial state",
        "Master removed our application|stopped SparkContext|dagScheduler",
        "It starts a cluster with the scripts of a Spark build.",
    ),
    Reason(
        "(RocksDBStateStore)?StreamingAggregationSuite",
        "schema check off - state format version 1",
        "Timed out while waiting for failure",
        _ALSO_SPARKS,
    ),
    Reason(
        "Streaming.*Join.*Suite",
        "SPARK-5(1779 V|5628: v)erify .* writes correct key and value schemas",
        "Assert on query failed",
        _ALSO_SPARKS,
        other_spark=True,
    ),
    Reason(
        "StreamRealTimeMode(Allowlist)?Suite|StreamSuite",
        "operator allowlist|repartition not allowed|stateful queries not allowed|environment check"
        "|specify custom state store provider",
        "never returned normally|already active|no exception was thrown|getMessage",
        _ALSO_SPARKS,
        other_spark=True,
    ),
    Reason(
        "RocksDBStateStore(Integration)?Suite",
        "RocksDB confs are passed|^RocksDBStateStore - .*[(]without|SPARK-36236"
        "|SPARK-36519: RocksDB format|SPARK-37224|memory tracking integration"
        "|RocksDB State Store backward compatibility. [(]with chang|bounded memory usage"
        "|SPARK-54063: forceSnapshot metric|^version encoding"
        "|fileChecksumThreadPoolSize (propagates|= 0 supports)"
        "|numInternalKeys metrics .*Enabled=true|checksum files"
        "|column family id is assigned correctly|task completion listener|creatingProvider tracks"
        "|file manager metrics exposed .*[(]without",
        "Assert on query failed|never returned normally|no exception was thrown|was not empty"
        '|Job aborted|metricPair.isDefined|has no RocksDB of Spark\'s|"[$]this" is null'
        "|private method named|nobody went on|cannot be cast",
        "It looks at metrics, settings, memory or files that only RocksDB's store has.",
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "getStore with invalid versions|^get, put, remove, commit, and all data iterator"
        "|state transitions with|multiple aborts are idempotent|multiple commits throw"
        "|verify operation validation before|closing the iterator also closes"
        "|cannot put null value|operations on absent column family|removeColFamilyIfExists correct"
        "|get checkpoint info works only after commit",
        "checkError found|MILLPOND_CHANGELOG_MISSING|MILLPOND_STORE_CLOSED|cannot be null",
        _OTHER_WORDS,
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "column family creation with (invalid names|reserved chars) .*Enabled=false",
        "is disabled in RocksDBStateStoreProvider",
        _OTHER_WORDS,
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "SPARK-38320 - state store iterator behavior",
        "did not equal",
        "It knows RocksDB's store by the class's name; Millpond's iterators see what those see.",
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "^prefix scan - .*Enabled=true|values iterator correctness",
        "operation not supported with a column family of kind point",
        "It keeps rows in the default column family beside others, which no operator does.",
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "rocksdb range scan validation",
        "SparkUnsupportedOperationException to be thrown",
        "It wants the order of keys checked when a store is made; Millpond checks it in the load.",
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "abort after commit throws|get metrics works only after commit"
        "|SPARK-54389: State store loading fails|iterator, commit, load with multiple column"
        "|deleteRange - changelog checkpointing",
        "no exception was thrown",
        "It wants a refusal of what no operator does, and Millpond allows it.",
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "SPARK-18342: commit fails when rename fails",
        "No FileSystem for scheme",
        "The scheme of its file system has capital letters, which Millpond takes for small ones.",
    ),
    Reason(
        "RocksDBStateStoreCheckpointFormatV2Suite",
        "racing commits don't return incorrect checkpointInfo",
        "MILLPOND_CHECKPOINT_FORMAT_CHANGED",
        "It opens a version without its id, which Spark checkpoint format 2 always names.",
    ),
    Reason("RocksDBStateStoreSuite", "Load spark 4.0 golden checkpoint", _FOREIGN, _GOLDEN),
    Reason(
        "MapStateSuite",
        "Map state operations (for single instance|with list, value)",
        "did not equal List",
        "It wants a map's keys in their order; Spark promises no order, and Millpond has none.",
    ),
    Reason(
        "StatefulProcessorHandleSuite",
        "ttl States are populated for .*State and timeMode=ProcessingTime .encoding = unsaferow",
        "VALUE_SCHEMA_NOT_COMPATIBLE",
        "It gives one name to two states, which Spark refuses to a query, and Millpond to a store.",
    ),
    Reason(
        "StateStore(Coordinator(Streaming)?|InstanceMetric)Suite",
        "SPARK-51358: Restarting queries (do not mark state stores|with updated SQLConf)"
        "|SPARK-54063: [Ff]orce |SPARK-51358: (Verify coordinator|Snapshot lag reports) properly"
        "|SPARK-51358: Snapshot uploads .*SkipMaintenance"
        "|erify snapshot lag metrics .*(SkipMaintenance.*|families.*)[(]with changelog",
        "Assert on query failed|did not equal 0|had size 0",
        _ALSO_SPARKS,
        other_spark=True,
    ),
    Reason(
        "RocksDBStateStoreSuite",
        "SPARK-48997: maintenance threads with exceptions",
        "isLoaded.provider0Id. was true",
        _ALSO_SPARKS,
        other_spark=True,
    ),
    Reason(
        "StateStoreCoordinatorSuite",
        "not reported if changelog checkpointing is disabled",
        "was not empty",
        "Millpond always has a changelog, and reports its snapshots.",
        other_spark=True,
    ),
    Reason(
        "FlatMapGroupsWithStateWithInitialStateSuite",
        "initial state - processing time timeout - state format version 1",
        "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
        "It fails with RocksDB's store, too: format 1 declares its time stamp as integer.",
    ),
    Reason(
        "RocksDBWithCheckpointV2StateDataSourceReaderSuite",
        "SPARK-56970: reading a v2 checkpoint with commit log version 1",
        "no exception was thrown",
        "RocksDB's store must fail to read such a Spark checkpoint; Millpond reads it.",
    ),
    Reason(
        "Streaming.*Join.*Suite",
        "SPARK-51779 Restart",
        'because "numInternal',
        "It reads metrics that only RocksDB's store has.",
    ),
    Reason(
        "Streaming.*Join.*Suite|TransformWithStateValidationSuite",
        "SPARK-51779 Join query using virtual column families with HDFS should fail"
        "|streaming with hdfsStateStoreProvider should fail",
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
        "RocksDBWith.*StateDataSourceReader(Snapshot)?Suite|TransformWithState(Avro|UnsafeRow)Suite",
        "snapshotStartBatchId on join state v[34]|schema evolution with time travel support",
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
