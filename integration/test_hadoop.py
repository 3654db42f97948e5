"""State on one of Hadoop's file systems. The JVM moves the files.

The file system is `viewfs:`. It runs in the process and has both of Hadoop's interfaces. HDFS
cannot run from pyspark's jars: they have its client (`DistributedFileSystem`), but no NameNode and
no DataNode.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.harness import Harness, Schema, providers_to_test, short_conf
from integration.jvm import MILLPOND
from integration.store_model import as_state, write_spark_metadata
from millpond.format.roots import parse_root
from millpond.storage import Storage
from millpond.storage.hadoop import HadoopStorage
from millpond.testing.storage_contract import StorageContract

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(MILLPOND not in providers_to_test(), reason="about Millpond's storage"),
]


_numbers = itertools.count()


class TestHadoopStorage(StorageContract):
    @pytest.fixture
    def storage(self, spark: SparkSession, tmp_path: Path) -> Storage:
        jvm: Any = spark.sparkContext._jvm
        files = jvm.org.apache.spark.sql.millpond.agent.HadoopFiles
        conf = jvm.org.apache.hadoop.conf.Configuration(
            spark.sparkContext._jsc.hadoopConfiguration()
        )
        # Hadoop keeps one file system for each authority, with its first mounts.
        authority = f"pond{next(_numbers)}"
        conf.set(f"fs.viewfs.mounttable.{authority}.link./data", f"file://{tmp_path}")
        root = f"viewfs://{authority}/data/the checkpoint % of it"
        files.remember(root, conf)
        return HadoopStorage(parse_root(root), files=files.call)

    def test_readers_never_see_a_part(self, storage: Storage) -> None:
        """Skip this test: Hadoop's local file system deletes before it renames. HDFS does not."""


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_a_store(harness: Harness, tmp_path: Path, checkpoint_format: int) -> None:
    write_spark_metadata(
        tmp_path / "checkpoint",
        operator_name="stateStoreSave",
        partitions=1,
        provider_class=MILLPOND,
    )
    authority = f"lake{checkpoint_format}"
    hadoop = {f"fs.viewfs.mounttable.{authority}.link./data": f"file://{tmp_path}"}
    conf = {
        **short_conf({"checkpointFormatVersion": checkpoint_format, "minDeltasForSnapshot": 2}),
        "spark.sql.shuffle.partitions": "1",
    }

    def opened() -> Any:
        root = f"viewfs://{authority}/data/checkpoint/state"
        return harness.open(
            root, provider_class=MILLPOND, schema=Schema(), conf=conf, hadoop=hadoop
        )

    provider = opened()
    version, commit_id = 0, None
    for i in range(5):
        store = provider.store(version, commit_id)
        store.put(["a", i], ["x" * i, i])
        done = store.commit()
        version, commit_id = done.version, done.id
        if i == 3:
            provider.snapshot()
    provider.cleanup()
    provider.close()
    reader = opened()
    again = reader.store(version, commit_id)
    assert len(as_state(again.scan())) == 5
    again.abort()
    reader.close()
    names = {
        path.suffix
        for path in (tmp_path / "checkpoint/state/0/0").rglob("*")
        if not path.name.startswith(".")
    }
    assert names == {".changelog", ".manifest", ".sst", ""}
