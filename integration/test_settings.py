"""Wrong settings: an error that says which, and never a store that starts empty."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration.cases import CLICKS, EVENTS
from integration.damage_scene import Scene, written_scene
from integration.depth import quick_first
from integration.harness import Harness, millponds_own, module_harness
from integration.jvm import MILLPOND, REPO, ROCKSDB
from integration.streams import Input, Run, finish, settings, start
from millpond import checkpoint

pytestmark = millponds_own

harness = module_harness


def test_other_max_parallelism_is_refused(harness: Harness, tmp_path: Path) -> None:
    """A new Spark checkpoint fixes max parallelism. The same value, or none, is fine."""
    scene = written_scene(harness, tmp_path)
    text = scene.refuses(8, "MAX_PARALLELISM_MISMATCH", maxParallelism=512)
    assert "512" in text and "128" in text
    assert scene.read(8, maxParallelism=128) == scene.states[8]


def test_max_parallelism_must_be_a_multiple(harness: Harness, tmp_path: Path) -> None:
    """Max parallelism must be a multiple of the number of partitions."""
    scene = Scene(harness, tmp_path / "checkpoint", partitions=4)
    text = scene.refuses(0, "MAX_PARALLELISM_INVALID", maxParallelism=6)
    assert "6" in text and "4" in text


@pytest.mark.parametrize(
    ("option", "value", "kind", "says"),
    [
        ("memry.budget", "1g", "UNKNOWN_OPTION", "memory.budget"),
        ("memory.budget", "12", "INVALID_OPTION", "memory.budget"),
        ("changelog.codec", "lz4", "INVALID_OPTION", "zstd"),
        ("commit.fsync", "perhaps", "INVALID_OPTION", "commit.fsync"),
    ],
)
def test_wrong_option_is_named(
    harness: Harness, tmp_path: Path, option: str, value: str, kind: str, says: str
) -> None:
    """The error names the option, and the nearest valid name or the allowed values."""
    scene = Scene(harness, tmp_path / "checkpoint")
    text = scene.refuses(0, kind, **{option: value})
    assert option in text and says in text


def test_the_local_folder_is_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be named by a link, and by a path from the working directory. A wrong one is told."""
    disk, work = tmp_path / "disk", tmp_path / "work"
    disk.mkdir()
    work.mkdir()
    (work / "link").symlink_to(disk)
    (work / "file").touch()
    monkeypatch.chdir(work)
    own = Harness(tmp_path)
    try:
        scene = Scene(own, tmp_path / "checkpoint")
        assert "agent.python" in scene.refuses(0, "INVALID_OPTION", **{"agent.python": " "})
        text = scene.refuses(0, "STORAGE_UNAVAILABLE", localDir=str(work / "file"))
        assert "localDir" in text and "FileAlreadyExistsException" in text
        provider = scene.open(localDir="link")
        scene.write(provider, 1)
        provider.close()
        assert list(disk.glob("millpond-*/owner.lock"))
    finally:
        own.stop()


def test_a_wrong_local_folder_can_be_taken_back(tmp_path: Path) -> None:
    """It was kept when the option was unset: only a new JVM helped."""
    (tmp_path / "file").touch()
    own = Harness(tmp_path)
    try:
        scene = Scene(own, tmp_path / "checkpoint")
        scene.refuses(0, "STORAGE_UNAVAILABLE", localDir=str(tmp_path / "file"))
        provider = scene.open()
        scene.write(provider, 1)
        provider.close()
    finally:
        own.stop()


@pytest.mark.deep
def test_a_uri_is_no_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It made a folder `s3:` in the working directory."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    own = Harness(tmp_path)
    try:
        scene = Scene(own, tmp_path / "checkpoint")
        for uri in (f"file://{work}/disk", "s3://bucket/folder"):
            text = scene.refuses(0, "INVALID_OPTION", localDir=uri)
            assert f"localDir = '{uri}' is a URI" in text
        assert list(work.iterdir()) == []
    finally:
        own.stop()


@pytest.mark.deep
def test_a_list_is_no_local_folder(tmp_path: Path) -> None:
    """It made a folder whose name has a comma, on the disk of the first one's parent."""
    own = Harness(tmp_path)
    try:
        scene = Scene(own, tmp_path / "checkpoint")
        for comma in (",", ", "):
            disks = f"{tmp_path}/a{comma}{tmp_path}/b"
            text = scene.refuses(0, "INVALID_OPTION", localDir=disks)
            assert f"localDir = '{disks}' is a list" in text
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("a")]
        provider = scene.open(localDir=str(tmp_path / "one,two"))
        scene.write(provider, 1)
        provider.close()
        assert list((tmp_path / "one,two").glob("millpond-*/owner.lock"))
    finally:
        own.stop()


def test_checkpoint_of_sparks_own_store_is_refused(harness: Harness, tmp_path: Path) -> None:
    """The store refuses. It does not start empty."""
    scene = Scene(harness, tmp_path / "checkpoint")
    provider = scene.open(provider_class=ROCKSDB)
    scene.write(provider, 2)
    provider.snapshot()
    provider.close()
    before = sorted(p.name for p in scene.directory.rglob("*"))
    scene.refuses(2, "FOREIGN_CHECKPOINT")
    assert sorted(p.name for p in scene.directory.rglob("*")) == before


@pytest.mark.parametrize("python", quick_first(["bare", "/nowhere/python"]))
def test_executor_without_python(tmp_path: Path, python: str) -> None:
    """One message names the missing interpreter or package."""
    if python == "bare":  # an interpreter that sees no packages at all
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\nexec env -u PYTHONPATH "{sys.executable}" -S -I "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        python = str(wrapper)
    own = Harness(tmp_path)
    try:
        scene = Scene(own, tmp_path / "checkpoint")
        text = scene.refuses(
            0,
            "AGENT_NOT_STARTED",
            "AGENT_PACKAGE_MISSING",
            **{"agent.python": python, "agent.driverPython": python},
        )
        assert python in text
        assert "pip install" in text or "interpreter" in text
    finally:
        own.stop()


def test_scala_and_python_agree_on_slots(harness: Harness) -> None:
    """Both sides give the slots of the shared vectors."""
    vectors = json.loads((REPO / "tests" / "vectors" / "keygroups.json").read_text())
    assert len(vectors) > 5
    for vector in vectors:
        g = vector["max_parallelism"]
        assert (
            harness.call("slots", max_parallelism=g, base=vector["base"], groups=list(range(g)))
            == vector["slots"]
        ), (g, vector["base"])


def _drop_crc(path: Path) -> None:
    path.with_name(f".{path.name}.crc").unlink(
        missing_ok=True
    )  # Hadoop would refuse the edited file first


def test_partitions_edited_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    """A user changes `spark.sql.shuffle.partitions` in the offset log. The query stops.

    The user changes it back. The query goes on.
    """
    source = Input(tmp_path / "input", EVENTS)
    frame = source.stream(spark).groupBy("k").agg(F.sum("v").alias("s"))
    run = Run(tmp_path / "checkpoint")
    conf = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}
    source.add(CLICKS[0])
    finish(start(spark, frame, run, output_mode="complete", conf=conf), run)
    log = tmp_path / "checkpoint" / "offsets" / "0"
    before = log.read_text()
    assert '"spark.sql.shuffle.partitions":"2"' in before
    log.write_text(
        before.replace('"spark.sql.shuffle.partitions":"2"', '"spark.sql.shuffle.partitions":"4"')
    )
    _drop_crc(log)
    source.add(CLICKS[1])
    query = start(spark, frame, run, output_mode="complete", conf=conf)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    assert "MILLPOND_PARTITIONS_CHANGED" in str(caught.value), str(caught.value)[:2000]
    # Spark planned batch 1 with the wrong number. So both entries need the right one.
    for entry in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"):
        entry.write_text(
            entry.read_text().replace(
                '"spark.sql.shuffle.partitions":"4"', '"spark.sql.shuffle.partitions":"2"'
            )
        )
        _drop_crc(entry)
    finish(start(spark, frame, run, output_mode="complete", conf=conf), run)
    sums: dict[str | None, int] = {}
    for row in [*CLICKS[0], *CLICKS[1]]:
        sums[row["k"]] = sums.get(row["k"], 0) + row["v"]
    assert run.rows[1] == sorted(f"Row(k={k!r}, s={s})" for k, s in sums.items())


def test_a_number_of_partitions_beside_blanks(spark: SparkSession, tmp_path: Path) -> None:
    """Spark takes it. Spark 3.5 also writes it into its logs as it is."""
    source = Input(tmp_path / "input", EVENTS)
    frame = source.stream(spark).groupBy("k").agg(F.sum("v").alias("s"))
    run = Run(tmp_path / "checkpoint")
    asked = []
    for number, partitions in enumerate((" 2", " 2", "3\t")):
        conf = {
            "spark.sql.streaming.stateStore.providerClass": MILLPOND,
            "spark.sql.shuffle.partitions": partitions,
        }
        source.add(CLICKS[number])
        finish(start(spark, frame, run, output_mode="complete", conf=conf), run)
        with settings(spark, conf):
            rows = spark.read.format("statestore").load(str(run.checkpoint)).count()
        assert rows == len({row["k"] for batch in CLICKS[: number + 1] for row in batch})
        log = run.checkpoint / "offsets" / str(number)
        text = log.read_text().replace('shuffle.partitions":"2"', 'shuffle.partitions":" 2"')
        assert ' 2"' in text
        log.write_text(text)
        _drop_crc(log)
        shown = checkpoint.show(run.checkpoint)
        assert shown.partitions == 2
        asked.append(shown.asked_partitions)
    assert asked == [None, None, 3]
