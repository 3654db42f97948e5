"""What a file of Spark's own costs by s3a. docs/benchmarks-s3.md has the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.peers.minio.server import Minio
from integration.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_FILES = 10
_BY_SPARK = {
    "headobject": 18,
    "listobjectsv2": 8,
    "putobject": 1,
    "copyobject": 1,
    "deleteobject": 1,
}


def test_a_file_of_sparks_store(spark: SparkSession, minio: Minio) -> None:
    """Spark's RocksDB store writes changelogs and snapshots in this way, and Spark its logs."""
    jvm: Any = spark.sparkContext._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in minio.hadoop.items():
        conf.set(name, value)
    folder = f"s3a://{minio.bucket()}/state/0/1"
    path = jvm.org.apache.hadoop.fs.Path
    streaming = jvm.org.apache.spark.sql.execution.streaming
    manager = streaming.checkpointing.CheckpointFileManager.create(path(folder), conf)
    manager.mkdirs(path(folder))
    wait_until(lambda: minio.requests()["putbucket"] >= 1, seconds=60, what="the first count")
    before = minio.requests()
    for number in range(_FILES):
        stream = manager.createAtomic(path(f"{folder}/{number}.changelog"), True)
        stream.write(bytearray(1000))
        stream.close()
    wait_until(
        lambda: (minio.requests() - before)["deleteobject"] >= _FILES,
        seconds=60,
        what="the count of the files",
    )
    assert minio.requests() - before == {name: n * _FILES for name, n in _BY_SPARK.items()}
