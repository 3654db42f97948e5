"""State on one of Hadoop's file systems. The JVM moves the files.

The file system is `viewfs:`. It runs in the process and has both of Hadoop's interfaces. HDFS
cannot run from pyspark's jars: they have its client (`DistributedFileSystem`), but no NameNode and
no DataNode. `make peer-hdfs` has them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from integration.cases import EVENTS
from integration.depth import quick_first
from integration.harness import Harness, Schema, millponds_own, short_conf
from integration.jvm import MILLPOND, REPO, compile_harness
from integration.peers.loopback import write_site
from integration.peers.refusals import Query
from integration.processes import wait_until
from integration.store_model import as_state, write_spark_metadata
from integration.streams import Input
from millpond.errors import ErrorKind, MillpondError, UnavailableError
from millpond.format import layout, spark_names
from millpond.format.roots import parse_root
from millpond.operations.take_over import take_over
from millpond.storage import LocalStorage, Storage, hadoop_jvm, is_there, open_storage
from millpond.storage.hadoop import HadoopStorage
from millpond.storage.owner import owner_record, read_owner
from millpond.storage.place import place_record
from millpond.testing.storage_contract import StorageContract

pytestmark = [pytest.mark.spark, millponds_own]


# Hadoop keeps one file system for each authority, with its first settings.
_numbers = itertools.count()
_DISK = "org.apache.spark.sql.millpond.testing.ObjectDisk"
Opened = Callable[[str, dict[str, str]], HadoopStorage]


@pytest.fixture
def opened(spark: SparkSession) -> Opened:
    """Return what opens a root with these settings of Hadoop's, by the session's JVM."""
    jvm: Any = spark.sparkContext._jvm
    files = jvm.org.apache.spark.sql.millpond.agent.HadoopFiles

    def open_it(root: str, settings: dict[str, str]) -> HadoopStorage:
        conf = jvm.org.apache.hadoop.conf.Configuration(
            spark.sparkContext._jsc.hadoopConfiguration()
        )
        for name, value in settings.items():
            conf.set(name, value)
        files.remember(root, conf)
        return HadoopStorage(parse_root(root), files=files.call)

    return open_it


class TestHadoopStorage(StorageContract):
    @pytest.fixture
    def storage(self, opened: Opened, tmp_path: Path) -> Storage:
        authority = f"pond{next(_numbers)}"
        mount = {f"fs.viewfs.mounttable.{authority}.link./data": f"file://{tmp_path}"}
        return opened(f"viewfs://{authority}/data/the checkpoint % of it", mount)

    def test_readers_never_see_a_part(self, storage: Storage) -> None:
        """Skip this test: Hadoop's local file system deletes before it renames. HDFS does not."""

    def test_the_local_folder_is_gone(self, storage: Storage, tmp_path: Path) -> None:
        """The object is there. An answer that it is absent would let a collection delete."""
        storage.put_bytes("a", b"x")
        with pytest.raises(UnavailableError) as caught:
            storage.get_to_file("a", str(tmp_path / "gone/file"))
        assert caught.value.kind is ErrorKind.LOCAL_FILES_LOST


class TestStorageOfACommand(StorageContract):
    """A process without a session. It has a JVM of its own, which reads HADOOP_CONF_DIR."""

    @pytest.fixture(scope="class")
    @classmethod
    def mounted(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        conf, data = tmp_path_factory.mktemp("conf"), tmp_path_factory.mktemp("data")
        mount = {"fs.viewfs.mounttable.own.link./data": f"file://{data}"}
        write_site(
            conf / "core-site.xml", {**mount, "fs.pond.impl": _DISK, "millpond.test.files": "50000"}
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HADOOP_CONF_DIR", str(conf))
            patch.setenv("SPARK_DIST_CLASSPATH", str(compile_harness()))
            patch.setattr(hadoop_jvm, "running_class", lambda name: None)
            patch.setattr(hadoop_jvm, "_running", None)
            yield data
            running = hadoop_jvm._running
            assert running is not None
            running._end()

    @pytest.fixture
    def storage(self, mounted: Path) -> Storage:
        return open_storage(f"viewfs://own/data/{next(_numbers)}/the checkpoint % of it")

    def test_readers_never_see_a_part(self, storage: Storage) -> None:
        """Skip this test, as above."""

    @pytest.mark.deep
    def test_the_jvm_is_killed(self, storage: Storage) -> None:
        """The call fails that needed it. The next has a new JVM."""
        storage.put_bytes("a", b"x")
        running = hadoop_jvm._running
        assert running is not None
        running._process.kill()
        running._process.wait()
        wait_until(lambda: running.ended, seconds=10, what="the thread to notice it")
        assert storage.read("a") == b"x"
        assert hadoop_jvm._running is not running

    def test_a_jvm_that_cannot_start(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hadoop_jvm, "_running", None)
        monkeypatch.setattr(hadoop_jvm, "_MAIN", "no.such.Class")
        with pytest.raises(UnavailableError, match=r"exit code 1.*no\.such\.Class") as caught:
            storage.read("a")
        assert (
            caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE and "SPARK_HOME" in caught.value.hint
        )

    @pytest.mark.deep
    def test_more_files_than_the_heap_has_room_for(
        self, mounted: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The call fails, and says what helps. It waited for an answer for ever."""
        storage = open_storage(f"pond://crowd{mounted}")
        assert len(list(storage.list(""))) == 50_000
        monkeypatch.setattr(hadoop_jvm, "_running", None)
        monkeypatch.setattr(hadoop_jvm, "_HEAP", {"spark.driver.memory": "40m"})
        # shortly before its end a JVM only collects garbage, by default for long
        monkeypatch.setenv("_JAVA_OPTIONS", "-XX:GCTimeLimit=50 -XX:GCHeapFreeLimit=20")
        with ThreadPoolExecutor(1) as pool:
            listing = pool.submit(storage.list, "")
            try:
                with pytest.raises(UnavailableError, match="OutOfMemoryError") as caught:
                    listing.result(timeout=120)
            finally:
                assert hadoop_jvm._running is not None
                hadoop_jvm._running._process.kill()
        assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE
        (option,) = re.findall(r"_JAVA_OPTIONS=(\S+)", caught.value.hint)
        monkeypatch.setenv("_JAVA_OPTIONS", option)
        assert len(list(storage.list(""))) == 50_000
        hadoop_jvm._running._end()


def test_without_its_key_file_a_file_system_says_nothing_of_a_file(
    opened: Opened, tmp_path: Path
) -> None:
    """Java has one exception for both. A take-over would say that the old owner is gone."""
    owner, key, state = f"gs://bucket{next(_numbers)}/ckpt", tmp_path / "key.json", tmp_path / "s"
    storage = opened(owner, {"fs.gs.impl": _DISK, "millpond.test.key": str(key)})
    for call in (storage.read, storage.stat, lambda name: is_there(storage, name)):
        with pytest.raises(MillpondError, match=re.escape(f"{key} (No such file")) as caught:
            call("a")
        assert caught.value.kind is ErrorKind.STORAGE_DENIED and "key file" in caught.value.hint
    copy, there = LocalStorage(str(tmp_path / "copy")), LocalStorage(str(state))
    copy.put_bytes(spark_names.QUERY_METADATA_KEY, b"{}")
    copy.put_bytes(layout.STORAGE_KEY, place_record(str(state)))
    there.put_bytes(layout.OWNER_KEY, owner_record(owner))
    with pytest.raises(MillpondError, match=r"cannot be looked at") as caught:
        take_over(tmp_path / "copy")
    assert caught.value.kind is ErrorKind.STATE_OWNED and read_owner(there) == owner
    key.touch()
    assert not is_there(storage, "a") and take_over(tmp_path / "copy").before == owner


@pytest.mark.parametrize("abstract", [False, True])
def test_a_file_that_is_deleted_to_be_replaced_is_not_lost(
    opened: Opened, tmp_path: Path, abstract: bool
) -> None:
    """The rename after the deletion fails, once or again. What it was to name was deleted too."""
    settings = {"fs.pond.impl": _DISK}
    if abstract:  # Hadoop's AbstractFileSystem, as ABFS has it
        settings["fs.AbstractFileSystem.pond.impl"] = f"{_DISK}Context"

    def with_old_file(failing: int) -> HadoopStorage:
        root = f"pond://lake{next(_numbers)}{tmp_path}/{failing}"
        storage = opened(root, {**settings, "millpond.test.failing": str(failing)})
        storage.put_bytes("a", b"old")
        return storage

    once = with_old_file(1)
    once.put_bytes("a", b"new")
    assert once.read("a") == b"new"
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["a"]
    again = with_old_file(2)
    with pytest.raises(UnavailableError, match="the rename fails") as caught:
        again.put_bytes("a", b"new")
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE
    (kept,) = (tmp_path / "2").iterdir()
    assert kept.read_bytes() == b"new" and f"is kept in {again._uri(kept.name)}" in str(
        caught.value
    )


@pytest.mark.parametrize("checkpoint_format", quick_first([1, 2]))
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


def test_a_connector_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    """pyspark's jars know the names of `abfs:` and `s3a:`, and lack both."""
    page = (REPO / "docs/guides/troubleshooting.md").read_text()
    no_class = "ClassNotFoundException: Class org.apache.hadoop.fs.{} not found"
    for scheme, name in (("abfs", "azurebfs.Abfs"), ("s3a", "s3a.S3A")):
        missing = no_class.format(name)
        uri = f"{scheme}://c@account.dfs.core.windows.net" if scheme == "abfs" else "s3a://bucket"
        (tmp_path / scheme).mkdir()
        if scheme == "abfs":
            query = Query(spark, f"{uri}/states", {}, tmp_path / scheme)
            state = no_class.format("azurebfs.AzureBlobFileSystem")
            query.refused("MILLPOND_STORAGE_UNSUPPORTED", state, "on Spark's class path")
        # Spark keeps its own logs below checkpointLocation, and finds no class for them.
        with pytest.raises(Py4JJavaError, match=re.escape(missing)):
            _start(spark, f"{uri}/checkpoint", tmp_path / scheme / "rows")
        assert missing in page


def _start(spark: SparkSession, checkpoint: str, rows: Path) -> None:
    source = Input(rows, EVENTS)
    frame = source.stream(spark).groupBy("k").count().writeStream.outputMode("update")
    frame.format("noop").option("checkpointLocation", checkpoint).start()
