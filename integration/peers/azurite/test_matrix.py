"""Azurite as a place for Spark checkpoints, by Hadoop's ABFS: the tests of all storages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.jvm import SPARK_JARS
from integration.peers.azurite import parts
from integration.peers.azurite.server import HOST, Azurite
from integration.peers.commands import every_command, in_a_process
from integration.peers.loopback import free_port
from integration.peers.matrix import OBSTORE, Place, PlaceContract, PlaceQueries, note
from integration.peers.racer import Racer
from integration.streams import settings

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_MILLPOND = "spark.sql.streaming.stateStore.millpond."
_numbers = itertools.count()


@pytest.fixture
def place(azurite: Azurite, spark: SparkSession) -> Iterator[Place]:
    """A directory of the test. The session reaches the service."""
    root = f"{azurite.container('matrix')}/{next(_numbers)}"
    with settings(spark, azurite.hadoop):
        yield Place(
            storage="Azurite",
            door="Hadoop's ABFS",
            root=root,
            hadoop=azurite.hadoop,
            jars=parts.abfs(),
        )


class TestContract(PlaceContract):
    """The JVM of the session moves the files."""


def test_abfs_is_of_the_release_of_sparks_client() -> None:
    (client,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
    assert client.name == f"hadoop-client-api-{parts.versions()['hadoop-azure']}.jar"


@pytest.mark.sample
def test_what_it_can_do(place: Place) -> None:
    """ABFS deletes a file before it renames another to its name."""
    note(place, "creates_once", "lists_at_once")


class TestQueries(PlaceQueries):
    """Kills, a savepoint, a fork and a rescale. The job's JVM moves the files."""

    @pytest.fixture
    def place(self, place: Place) -> Place:
        return replace(place, conf={f"{_MILLPOND}storage.azure.client": "hadoop"})


class TestQueriesByObstore(PlaceQueries):
    """The agent moves the files. Of Spark's own logs, which are on Azure as well, ABFS does."""


class TestQueriesWithoutHadoopsJars(PlaceQueries):
    """The agent moves the files. Spark's own logs are in a directory."""

    @pytest.fixture
    def place(self, place: Place, azurite: Azurite) -> Place:
        azurite.make("matrix")
        conf = {f"{_MILLPOND}storage.uri": f"{place.root}/states"}
        return replace(place, jars=(), state_only=True, conf=conf)


# ---- commands, which need no jar of Hadoop's


@pytest.fixture
def own(azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A directory of the test, as a process without a session reaches it."""
    root = f"{azurite.make('commands')}/{next(_numbers)}"
    place = Place(storage="Azurite", door=OBSTORE, root=root, hadoop=azurite.hadoop)
    for name, value in place.environment(tmp_path / "conf").items():
        if name in ("HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH"):
            monkeypatch.setenv(name, value)
    return place


class TestContractWithoutASession(PlaceContract):
    """obstore moves the files."""

    @pytest.fixture
    def place(self, own: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
        monkeypatch.setattr("millpond.storage.hadoop_jvm.running_class", lambda name: None)
        return own


@pytest.mark.sample
def test_what_it_can_do_without_a_session(own: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.storage.hadoop_jvm.running_class", lambda name: None)
    note(own, "creates_once", "replaces_whole", "lists_at_once")


def test_one_of_both_ways_creates_a_file(place: Place, own: Place, tmp_path: Path) -> None:
    """A job's JVM and a command at one instant."""
    root = f"{place.root}/both"
    storage = place.open(root)
    with (
        Racer(place.open, root, 4, 0, None) as job,
        Racer(place.open, root, 4, 4, own.environment(tmp_path / "conf")) as command,
    ):
        for number in range(20):
            key = f"once/{number}"
            for racer in (job, command):
                racer.go(key)
            (won,) = [winner for racer in (job, command) for winner in racer.winners()]
            assert storage.read(key) == b"%d" % won


@pytest.mark.sample
def test_every_command_without_hadoops_jars(
    own: Place, spark: SparkSession, tmp_path: Path
) -> None:
    """The query's JVM has them. A command of Spark's own says that it lacks them."""
    every_command(own, spark, tmp_path / "work", by_a_jvm=False)
    run, env = f"{own.root}/run", own.environment(tmp_path / "conf")
    release = ["release", run, f"{own.root}/released", "--provider", "rocksdb"]
    ((_, code, said),) = in_a_process([release], env)
    assert code == 2 and "AzureBlobFileSystem not found" in said, said


def test_every_command_by_abfs(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    every_command(place, spark, tmp_path)


def test_commands_that_are_refused(own: Place, azurite: Azurite, tmp_path: Path) -> None:
    """Each error comes at once, says what to do, and changes nothing."""
    run = f"{own.root}/run"

    def refused(
        *says: str, root: str = run, obstore: bool = True, hadoop: Mapping[str, str] | None = None
    ) -> None:
        settings = {**azurite.hadoop, **(hadoop or {})}
        changed = replace(own, hadoop=settings, door=OBSTORE if obstore else "Hadoop's ABFS")
        env = changed.environment(tmp_path / "refused")
        both = [["checkpoint", "show", root], ["savepoint", "create", root, f"{root}-to"]]
        for _, code, said in in_a_process(both, env):
            assert code in (1, 2), said
            for text in says:
                assert text in said, said

    key = f"fs.azure.account.key.{HOST}"
    refused("STORAGE_DENIED", "403", "fs.azure.account.key", hadoop={key: "YW5vdGhlciBrZXk="})
    refused("STORAGE_DENIED", "AZURE_STORAGE_ACCOUNT_KEY", hadoop={key: ""})
    nowhere = azurite.container("nowhere")
    refused("STORAGE_BUCKET_MISSING", "ContainerNotFound", root=f"{nowhere}/run")
    closed = {"fs.azure.abfs.endpoint": f"127.0.0.1:{free_port()}"}
    refused("STORAGE_UNAVAILABLE", "this host reaches it", hadoop=closed)
    refused("STORAGE_UNSUPPORTED", "pip install 'millpond[azure]'", obstore=False)
    refused("INVALID_ARGUMENT", "no container and account", root=f"abfs://{HOST}/run")
    refused("STORAGE_UNSUPPORTED", "No FileSystem for scheme", root="ssh://host/run")
    assert list(own.open(own.root).list("")) == []
