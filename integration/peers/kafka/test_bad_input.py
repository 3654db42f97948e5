"""What a user sees if the connector or the broker is not there, from Millpond and from Spark.
Source: docs/guides/troubleshooting.md, which has the texts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from integration.jvm import LIGHT, REPO
from integration.peers.kafka import jars
from integration.peers.kafka.broker import Broker
from integration.peers.kafka.observed import conf_of, finish
from integration.peers.kafka.queries import Batches, from_topic, produce
from integration.streams import settings
from millpond import savepoint

pytestmark = [pytest.mark.spark, pytest.mark.peer]

# Plans the job, then starts it in the same JVM. A broker that is down is given up after seconds.
_JOB = """
import sys
import millpond
from pyspark.sql import SparkSession
from millpond.cli.main import main

def build(spark):
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", sys.argv[2])
    reader = reader.option("kafka.default.api.timeout.ms", "4000")
    reader = reader.option("kafka.request.timeout.ms", "3000").option("fetchOffset.numRetries", "1")
    rows = reader.option("subscribe", sys.argv[3]).load()
    keys = rows.selectExpr("CAST(key AS STRING) AS key")
    return keys.groupBy("key").count().writeStream.outputMode("update")

if __name__ == "__main__":
    work, servers, topic = sys.argv[1:]
    spark = millpond.configure(SparkSession.builder.master("local[1]")).getOrCreate()
    job = f"{__file__}:build {work} {servers} {topic}"
    print("plan", main(["savepoint", "plan", f"{work}/saved", "--job", job]), flush=True)
    try:
        writer = build(spark).format("noop").option("checkpointLocation", f"{work}/{servers}")
        writer.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:
        print(f"Spark: {error}", flush=True)
"""


_PAGE = (REPO / "docs/guides/troubleshooting.md").read_text()
_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


@dataclass(frozen=True)
class Scene:
    """A saved query, and the connector's jars: `own`, and what it needs."""

    work: Path
    topic: str
    servers: str
    own: Path
    needs: list[Path]


@pytest.fixture(scope="module")
def scene(
    spark: SparkSession,
    kafka: Broker,
    connectors: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Scene:
    work, topic = tmp_path_factory.mktemp("bad"), "bad-input"
    produce(spark, kafka, topic, Batches().next())
    keys = from_topic(spark, kafka, topic).groupBy("key").count()
    with settings(spark, conf_of("1")):
        finish(keys.writeStream.outputMode("update").format("noop"), work / "first")
    savepoint.create(work / "first", work / "saved")
    needs = [jar for jar in connectors if "spark-sql-kafka" not in jar.name]
    (own,) = set(connectors) - set(needs)
    return Scene(work, topic, kafka.servers, own, needs)


def _run(scene: Scene, classpath: list[Path], servers: str = "") -> tuple[str, str]:
    """Return what `plan` and Spark say of the job to somebody with these jars."""
    work = scene.work
    job = work / "job.py"
    job.write_text(_JOB)
    conf = work / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text(
        f"spark.driver.extraClassPath {os.pathsep.join(map(str, classpath))}\n"
        f"spark.driver.extraJavaOptions {LIGHT}\nspark.ui.enabled false\n"
        f"spark.local.dir {work}/local\nspark.sql.shuffle.partitions 2\nspark.driver.memory 600m\n"
    )
    done = subprocess.run(
        [sys.executable, str(job), str(work), servers or scene.servers, scene.topic],
        env={**os.environ, "SPARK_CONF_DIR": str(conf)},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def _documented(text: str) -> str:
    """Return a text that the page has, too."""
    assert text in _PAGE, text
    return text


def test_the_connector_is_not_there(scene: Scene) -> None:
    out, err = _run(scene, [])
    text = _documented("[KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find data source: kafka.")
    assert "plan 2\n" in out and f"Spark: {text}" in out
    assert f"USER_CODE_FAILED: your function build raised AnalysisException: {text}" in err
    assert f"--conf spark.jars.packages={_PACKAGE} " in err


def test_the_connector_is_there_without_what_it_needs(scene: Scene) -> None:
    out, err = _run(scene, [scene.own])
    text = _documented("java.lang.NoClassDefFoundError: org/apache/kafka/")
    assert "plan 2\n" in out and text.partition(": ")[2] in out
    reason = _documented("java.lang.ClassNotFoundException: org.apache.kafka.")
    assert f"USER_CODE_FAILED: your function build raised Py4JJavaError: {reason}" in err
    assert f"--conf spark.jars.packages={_PACKAGE} " in err


def test_the_connector_is_for_another_spark(scene: Scene) -> None:
    """Spark notices it in the first batch, `plan` before."""
    out, err = _run(scene, [jars.older(), *scene.needs])
    assert "plan 0\n" in out and _documented("SerializedOffset.<init>(java.lang.String)") in out
    assert f"connector is that of Spark 3.5.7, and Spark {pyspark.__version__} runs" in err
    assert _PACKAGE in err


def test_the_broker_is_down(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    out, err = _run(scene, [scene.own, *scene.needs], nobody)
    text = _documented("TimeoutException: Timed out waiting for a node assignment.")
    assert "plan 0\n" in out and text in out.partition("Spark: ")[2]
    assert f"warning: source 0: the Kafka broker at {nobody} did not say" in err and text in err
    log = _documented("could not be established. Node may not be available.")
    assert any(nobody in line and log in line for line in err.splitlines())


def test_all_is_well(scene: Scene) -> None:
    """The same job, with all that it needs."""
    out, err = _run(scene, [scene.own, *scene.needs])
    assert "plan 0\n" in out and "Spark: " not in out and "warning" not in err.replace("WARN", "")
