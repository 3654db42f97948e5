"""Which of Spark's suites run, and how: one JVM a suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from integration.jvm import java_command, millpond_jar
from integration.peers.spark import jars
from integration.peers.spark.outcomes import Outcome, read

_STREAMING = "org.apache.spark.sql.streaming"
_EXECUTION = "org.apache.spark.sql.execution.streaming"
_READER = "org.apache.spark.sql.execution.datasources.v2.state"
_STATE = "org.apache.spark.sql.execution.streaming.state"
_MILLPOND = "org.apache.spark.sql.millpond"
_SETTING = "spark.sql.streaming.stateStore"
_LOG4J = Path(__file__).with_name("log4j2.properties")
_CRASHED, _ABORTED = "A fatal error has been detected by", "*** RUN ABORTED ***"
AND_THE_REST = "the test that is next, and those behind"
# A suite that takes longer hangs.
_LIMIT_S = 3600

# The short name of every suite that touches state, by package.
_NAMES = {
    _STREAMING: """
        StreamingAggregationSuite RocksDBStateStoreStreamingAggregationSuite
        StreamingAggregationDistributionSuite
        StreamingDeduplicationSuite RocksDBStateStoreStreamingDeduplicationSuite
        StreamingDeduplicationDistributionSuite StreamingDeduplicationWithinWatermarkSuite
        StreamingInnerJoinV4Suite
        StreamingInnerJoinWithVCFSuite StreamingInnerJoinWithoutVCFSuite
        StreamingOuterJoinV4Suite
        StreamingOuterJoinWithVCFSuite StreamingOuterJoinWithoutVCFSuite
        StreamingFullOuterJoinV4Suite
        StreamingFullOuterJoinWithVCFSuite StreamingFullOuterJoinWithoutVCFSuite
        StreamingLeftSemiJoinV4Suite
        StreamingLeftSemiJoinWithVCFSuite StreamingLeftSemiJoinWithoutVCFSuite
        StreamingSessionWindowSuite StreamingSessionWindowDistributionSuite
        FlatMapGroupsWithStateSuite FlatMapGroupsWithStateWithInitialStateSuite
        FlatMapGroupsWithStateDistributionSuite RocksDBStateStoreFlatMapGroupsWithStateSuite
        MultiStatefulOperatorsSuite EventTimeWatermarkSuite
        StreamingStateStoreFormatCompatibilitySuite StreamingQueryHashPartitionVerifySuite
        StreamingQueryOptimizationCorrectnessSuite StreamingSelfUnionSuite
        TransformWithStateAvroSuite TransformWithStateUnsafeRowSuite
        TransformWithStateChainingSuite TransformWithStateInitialStateSuite
        TransformWithStateClusterSuite TransformWithStateValidationSuite
        TransformWithListStateSuite TransformWithListStateTTLSuite
        TransformWithMapStateSuite TransformWithMapStateTTLSuite TransformWithValueStateTTLSuite
        StreamRealTimeModeSuite StreamRealTimeModeWithManualClockSuite StreamRealTimeModeE2ESuite
        StreamRealTimeModeAllowlistSuite StreamingQueryListenerSuite
        StreamingQueryStatusAndProgressSuite StreamingQuerySuite StreamSuite
        DeprecatedStreamingAggregationSuite TriggerAvailableNowSuite
        FlatMapGroupsInPandasWithStateSuite FlatMapGroupsInPandasWithStateDistributionSuite
    """,
    _EXECUTION: """
        MicroBatchExecutionSuite
        EventTimeWatermarkWithWatermarkDefInSelectSuite
        MergingSortWithSessionWindowStateIteratorSuite
    """,
    _READER: """
        RocksDBStateDataSourceReadSuite HDFSBackedStateDataSourceReadSuite
        RocksDBWithChangelogCheckpointStateDataSourceReaderSuite
        RocksDBWithCheckpointV2StateDataSourceReaderSuite
        RocksDBWithCheckpointV2StateDataSourceReaderSnapshotSuite
        RocksDBWithChangelogCheckpointStateDataSourceChangeDataReaderSuite
        RocksDBWithCheckpointV2StateDataSourceChangeDataReaderSuite
        HDFSBackedStateDataSourceChangeDataReaderSuite StateDataSourceTransformWithStateSuite
        StateDataSourceNegativeTestSuite StateDataSourceNoEmptyDirCreationSuite
        StateDataSourceSQLConfigSuite StatePartitionAllColumnFamiliesReaderSuite
    """,
    _STATE: """
        StateStoreSuite StateStoreRDDSuite StateStoreCoordinatorStreamingSuite
        StateStoreInstanceMetricSuite OperatorStateMetadataSuite StateStoreCompatibilitySuite
        RocksDBStateStoreIntegrationSuite RocksDBStateStoreCheckpointFormatV2Suite
        RocksDBStateStoreSuite StatefulProcessorHandleSuite StreamingAggregationStateManagerSuite
        StreamingSessionWindowStateManagerSuite SymmetricHashJoinStateManagerSuite
        SymmetricHashJoinStateManagerEventTimeInKeySuite
        SymmetricHashJoinStateManagerEventTimeInValueSuite ValueStateSuite ListStateSuite
        MapStateSuite TimerSuite RocksDBStateStoreRowChecksumSuite HDFSStateStoreRowChecksumSuite
        StateStoreCoordinatorSuite StateSchemaCompatibilityCheckerSuite
    """,
}
SUITES = {name: f"{package}.{name}" for package, names in _NAMES.items() for name in names.split()}
# What CI runs.
SAMPLE = ("StreamingDeduplicationWithinWatermarkSuite", "TransformWithStateChainingSuite")


def chosen() -> list[str]:
    """Return the short names of the suites to run: those of $MILLPOND_SUITES, else all."""
    asked = os.environ.get("MILLPOND_SUITES", "").split()
    unknown = sorted(set(asked) - set(SUITES))
    if unknown:
        raise ValueError(f"no such suite in integration/peers/spark/suites.py: {unknown}")
    return asked or list(SUITES)


def run(suite: str, folder: Path) -> list[Outcome]:
    """Run a suite in a JVM of its own, and return what became of each of its tests.

    Args:
        suite: its short name.
        folder: new; gets the log and the temporary files.
    Raises: AssertionError: the JVM ended before the suite did.
    """
    for name in ("tmp", "home"):
        (folder / name).mkdir(parents=True)
    # some suites look for their resources where Spark's sources have them
    for part in ("core", "sql/core", "sql/catalyst"):
        place = folder / "home" / part / "src" / "test"
        place.mkdir(parents=True)
        (place / "resources").symlink_to(jars.resources())
    shim, agent = millpond_jar(), jars.agent()
    assert shim is not None, "run: make build"
    classpath = [jars.resources(), agent, shim, *jars.tests()]
    arguments = ["-oW", "-C", "org.apache.spark.sql.millpond.peer.Report", "-s", SUITES[suite]]
    command = java_command("org.scalatest.tools.Runner", arguments, classpath=classpath, heap="2g")
    properties = {
        "peer.report": folder / "report",
        "peer.stores": folder / "stores",
        "peer.log": folder / "log",
        "log4j2.configurationFile": _LOG4J,
        "java.io.tmpdir": folder / "tmp",
        "java.awt.headless": "true",
        "jdk.reflect.useDirectMethodHandle": "false",
        "io.netty.tryReflectionSetAccessible": "true",
        "spark.testing": "1",
        "spark.test.home": folder / "home",
        "spark.ui.enabled": "false",
        "spark.unsafe.exceptionOnMemoryLeak": "true",
        f"{_SETTING}.millpond.agent.python": sys.executable,
        # no suite kills the machine
        f"{_SETTING}.millpond.commit.fsync": "false",
    }
    # This suite wants that nobody but Spark listens to queries.
    if suite != "StreamingQueryListenerSuite":
        properties["spark.sql.extensions"] = f"{_MILLPOND}.MillpondExtension"
    # Spark refuses real-time mode in a session that names another provider than RocksDB's. These
    # suites of 4.2 have no stateful query.
    if not suite.startswith("StreamRealTimeMode"):
        properties[f"{_SETTING}.providerClass"] = f"{_MILLPOND}.MillpondStateStoreProvider"
    options = [f"-D{key}={value}" for key, value in properties.items()]
    with (folder / "stdout").open("wb") as said:
        subprocess.run(
            [command[0], "-Xss4m", f"-javaagent:{agent}", *options, *command[1:]],
            cwd=folder,
            env={**os.environ, "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,  # it is 1 when a test fails
            timeout=_LIMIT_S,
        )
    found = read(folder).get(SUITES[suite])
    if found is not None:
        return found
    # The JVM crashed; or scalatest takes an error of linkage for the end of everything.
    text = (folder / "stdout").read_text(errors="replace")
    told = next((text.partition(mark)[2] for mark in (_CRASHED, _ABORTED) if mark in text), text)
    before = read(folder, ended_only=False).get(SUITES[suite], [])
    assert before, text[-2000:]
    return [*before, Outcome(SUITES[suite], AND_THE_REST, "aborted", told, 0)]
