"""Rescales without a JVM.

Bad input changes nothing. A user can finish or undo an interrupted rescale. Millpond notices a
running query.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import savepoint
from millpond.agent.service import AgentService
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout, spark_names
from millpond.format.composed import intersect
from millpond.model.json_fields import KeyGroupsInfo
from millpond.model.key_groups import KeyGroups, merge_ranges
from millpond.operations.inspect import overview, verify
from millpond.operations.rescale import rescale
from millpond.spark.heartbeats import heartbeats
from millpond.spark.log_edit import (
    commit_with_state_ids,
    offsets_with_partitions,
    operator_metadata_with_partitions,
)
from millpond.spark.metadata import read_spark_metadata
from millpond.storage import LocalStorage, MemoryStorage, ObjectInfo
from millpond.storage.split import SplitStorage
from tests.agent_driver import CallError, call
from tests.checkpoints import CheckpointBuilder, tree
from tests.rescale_scenes import beat, interrupt, refused

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("partitions", [0, -1, 65_537, 4])
def test_numbers_that_cannot_be(built: CheckpointBuilder, partitions: int) -> None:
    assert refused(built, partitions).kind is ErrorKind.PARTITIONS_INVALID


def test_the_numbers_that_move_no_row_are_named(built: CheckpointBuilder) -> None:
    planned = rescale(built.storage, "it", 5, dry_run=True)
    assert planned.way == "rehash" and planned.near == (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    assert rescale(built.storage, "it", 6, dry_run=True).way == "composed"


def test_metadata_of_a_batch_that_was_not_committed_is_not_taken(
    built: CheckpointBuilder,
) -> None:
    """Another job had begun batch 6, and was cut short. A rescale made its variables permanent, and
    Spark refused every later start.
    """
    _, v1 = built.storage.read(spark_names.operator_metadata_v1_key(0)).split(b"\n", 1)
    described = json.loads(v1)
    described["stateStoreInfo"][0]["stateSchemaFilePaths"] = []
    prefix = spark_names.operator_metadata_v2_prefix(0)
    for batch, job in ((0, "first"), (4, "mine"), (6, "another")):
        made = json.dumps({**described, "operatorPropertiesJson": json.dumps({"job": job})})
        built.storage.put_bytes(f"{prefix}{batch}", f"v2\n{made}".encode())
    rescale(built.storage, "it", 8)
    _, text = built.storage.read(f"{prefix}6").split(b"\n", 1)
    assert json.loads(json.loads(text)["operatorPropertiesJson"]) == {"job": "mine"}


def test_rows_that_cannot_be_read_change_nothing(built: CheckpointBuilder) -> None:
    # No reader can decode these made-up rows.
    assert refused(built, 5).kind is ErrorKind.CHANGELOG_DAMAGED


def test_only_what_changes_differs_in_the_logs(built: CheckpointBuilder) -> None:
    before = tree(built.root)
    report = rescale(built.storage, "it", 8)
    after = tree(built.root)
    assert {k: v for k, v in after.items() if k in before} == before, "the rescale changes no file"
    assert (report.current, report.partitions, report.batch, report.stores) == (4, 8, 6, 8)
    assert report.written_bytes == sum(len(v) for k, v in after.items() if k not in before)
    old, new = before["offsets/5"].decode(), after["offsets/6"].decode()
    assert new == old.replace(": ", ":").replace(", ", ",").replace('"4"', '"8"')
    assert after["commits/6"] == before["commits/5"]
    assert read_spark_metadata(built.storage).partitions == 8
    names = [f"state/0/{p}/7.manifest" for p in range(8)]
    assert sorted(k for k in after if k not in before) == sorted(
        [*names, "offsets/6", "commits/6", "millpond/pins/rescale-0-6.json"]
    )


def test_a_composed_manifest_refers_to_files_of_other_partitions(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    """`checkpoint show` called them unreferenced: a fork has no other manifest."""
    rescale(built.storage, "it", 8)
    savepoint.fork(built.root, tmp_path / "fork")
    (operator,) = overview(LocalStorage(str(tmp_path / "fork")), "fork").operators
    assert sum(store.sst_bytes for store in operator.stores) > 0
    assert [store.unreferenced_bytes for store in operator.stores] == [0] * len(operator.stores)


def test_a_dry_run_says_the_same_and_writes_nothing(built: CheckpointBuilder) -> None:
    before = tree(built.root)
    planned = rescale(built.storage, "it", 12, dry_run=True)
    assert tree(built.root) == before
    done = rescale(built.storage, "it", 12)
    assert planned.dry_run and not done.dry_run
    assert (planned.state_bytes, planned.stores, planned.batch) == (
        done.state_bytes,
        done.stores,
        done.batch,
    )


def test_no_committed_batch(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "new")
    built.spark_logs(1)
    (built.root / "commits/0").unlink()
    assert refused(built, 4).kind is ErrorKind.BATCH_NOT_COMMITTED


def test_no_checkpoint_at_all(tmp_path: Path, capsys: Captured) -> None:
    assert main(["rescale", str(tmp_path / "nothing"), "--partitions", "4"]) == 2
    assert "NOT_A_CHECKPOINT" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_another_provider(tmp_path: Path) -> None:
    built = CheckpointBuilder(tmp_path / "foreign", provider="org.apache.spark.sql.X").build()
    (built.root / layout.FORMAT_KEY).unlink()
    assert refused(built, 4).kind is ErrorKind.FOREIGN_CHECKPOINT


def test_an_uncommitted_batch_is_left_out_only_if_told_to(built: CheckpointBuilder) -> None:
    (built.root / "commits/5").unlink()
    assert refused(built, 8).kind is ErrorKind.BATCH_NOT_COMMITTED
    (built.root / spark_names.crc_key("offsets/5")).write_bytes(b"of the entry as it was")
    report = rescale(built.storage, "it", 8, skip_uncommitted=True)
    assert report.batch == 6
    spark = read_spark_metadata(built.storage)
    assert spark.commit_batches == (0, 1, 2, 3, 4, 5, 6)
    # The query reads the input of the batch that was left out again. A file source refuses entries
    # that go back.
    assert spark.offsets[6].sources == spark.offsets[5].sources == spark.offsets[4].sources
    assert [spark.was_left_out(batch) for batch in (4, 5, 6)] == [False, True, False]
    assert not (built.root / spark_names.crc_key("offsets/5")).exists()


@pytest.mark.parametrize("partitions", [8, 3])
def test_every_store_is_planned_once(built: CheckpointBuilder, partitions: int) -> None:
    asked: Counter[str] = Counter()

    class Counting(LocalStorage):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            asked[prefix] += 1
            return super().list(prefix)

        def read_range(self, key: str, offset: int, length: int) -> bytes:
            asked[key] += 1
            return super().read_range(key, offset, length)

    rescale(Counting(str(built.root)), "it", partitions, dry_run=True)
    assert {
        prefix: asked[prefix] for prefix in map(layout.store_prefix, built.stores())
    } == dict.fromkeys(map(layout.store_prefix, built.stores()), 1)
    assert {count for key, count in asked.items() if key.endswith(".changelog")} == {1}


def test_a_store_that_is_not_scalable(built: CheckpointBuilder) -> None:
    for manifest in built.manifests[built.stores()[1]]:
        info = KeyGroupsInfo(
            max_parallelism=48, base=12, partitions=4, scalable=False, reason="collated keys"
        )
        built.changed(manifest, key_groups=info)
    for version in (4, 5, 6):
        (built.root / f"state/0/1/{version}.changelog").unlink()
    (built.root / "commits/5").unlink()
    (built.root / "offsets/5").unlink()
    error = refused(built, 8)
    assert error.kind is ErrorKind.STORE_UNSCALABLE and "collated keys" in str(error)


def test_a_file_that_is_missing(built: CheckpointBuilder) -> None:
    (built.root / "state/0/2/6.changelog").unlink()
    assert refused(built, 8).kind is ErrorKind.CHANGELOG_MISSING


# ---- running queries


def test_a_running_query_is_left_alone(
    built: CheckpointBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    beat(built, os.getpid())
    error = refused(built, 8)
    assert error.kind is ErrorKind.QUERY_RUNNING and "run-1" in str(error)
    assert rescale(built.storage, "it", 8, dry_run=True).dry_run


def test_a_query_that_is_just_ending_is_waited_for(built: CheckpointBuilder) -> None:
    file = beat(built, os.getpid())
    threading.Timer(0.3, file.unlink).start()
    assert rescale(built.storage, "it", 8).partitions == 8


def test_a_killed_driver_is_known_to_be_gone(built: CheckpointBuilder) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    file = beat(built, ended.pid)
    assert heartbeats(built.storage) == []
    beat(built, ended.pid, host="elsewhere")
    assert [b.host for b in heartbeats(built.storage)] == ["elsewhere"]
    os.utime(file, (time.time() - 16, time.time() - 16))
    assert heartbeats(built.storage) == []
    file.write_text('{"run')  # a query is just writing it
    assert len(heartbeats(built.storage)) == 1


def test_what_the_last_start_asked_for(built: CheckpointBuilder, capsys: Captured) -> None:
    asked = {"partitions": 16, "run_id": "run-1", "updated_ms": 1, "refused": ""}
    (built.root / "millpond/asked.json").write_text(json.dumps(asked))
    assert main(["checkpoint", "show", str(built.root)]) == 0
    text = capsys.readouterr().out
    assert "asked for          16 partitions, by the last start of the query" in text
    assert f"millpond rescale '{built.root}' --partitions 16" in text and "refused" not in text
    (built.root / "millpond/asked.json").write_text(
        json.dumps({**asked, "refused": "QUERY_RUNNING: it runs"})
    )
    assert main(["checkpoint", "show", str(built.root), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["asked_partitions"], shown["asked_refused"]) == (16, "QUERY_RUNNING: it runs")
    rescale(built.storage, "it", 16)
    assert main(["checkpoint", "show", str(built.root)]) == 0
    assert "asked for" not in capsys.readouterr().out


# ---- option rescale.onRestart: what the agent does


def on_start(built: CheckpointBuilder, partitions: int, **options: object) -> dict[str, object]:
    uri = f"file:{built.root}"
    return call(
        AgentService(),
        "rescale",
        checkpoint=uri,
        run_id="r",
        partitions=partitions,
        options=options,
        file_sink="none",
    )


def test_agent_rescales_at_a_start(built: CheckpointBuilder) -> None:
    answer = on_start(built, 8)
    assert answer.pop("seconds") is not None and answer == {"from": 4, "way": "composed"}
    assert read_spark_metadata(built.storage).partitions == 8
    assert on_start(built, 8) == {}, "there is nothing to do"


@pytest.mark.parametrize("partitions", [4, 8, 12])
def test_agent_finds_an_interrupted_one(built: CheckpointBuilder, partitions: int) -> None:
    interrupt(built, 8)
    on_start(built, partitions)
    assert read_spark_metadata(built.storage).partitions == partitions
    assert not (built.root / layout.RESCALE_JOURNAL_KEY).exists()


def test_agent_refuses_as_the_command_does(built: CheckpointBuilder) -> None:
    (built.root / "commits/5").unlink()
    before = tree(built.root)
    for partitions, options, kind in (
        (8, {}, ErrorKind.BATCH_NOT_COMMITTED),
        (8, {"maxParallelism": "x"}, ErrorKind.INVALID_OPTION),
        (0, {}, ErrorKind.INVALID_ARGUMENT),
    ):
        with pytest.raises(CallError) as caught:
            on_start(built, partitions, **options)
        assert caught.value.kind is kind
    assert tree(built.root) == before


# ---- the command


def test_command(built: CheckpointBuilder, capsys: Captured) -> None:
    copy = built.root.parent / "copy"
    shutil.copytree(built.root, copy)
    assert main(["rescale", str(built.root), "--partitions", "8"]) == 0
    text = capsys.readouterr().out
    assert "partitions  4 -> 8" in text and "no row moves" in text
    assert main(["rescale", str(copy), "--partitions", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["way"], report["partitions"], report["dry_run"]) == ("composed", 8, False)
    assert main(["rescale", str(copy), "--undo"]) == 0
    assert "no rescale to take back" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(copy)]) == 0


@pytest.mark.parametrize(
    "arguments", [[], ["--undo", "--partitions", "3"], ["--partitions", "0"], ["--partitions", "x"]]
)
def test_wrong_usage(built: CheckpointBuilder, arguments: list[str], capsys: Captured) -> None:
    before = tree(built.root)
    assert main(["rescale", str(built.root), *arguments]) == 2
    assert tree(built.root) == before and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "more", ["-p 6", "--max-parallelism 48", "--dry-run", "--skip-uncommitted", "--file-sink none"]
)
def test_undo_goes_alone(built: CheckpointBuilder, more: str, capsys: Captured) -> None:
    """What only a new rescale heeds was silently ignored."""
    interrupt(built, 8)
    before = tree(built.root)
    assert main(["rescale", str(built.root), "--undo", *more.split()]) == 2
    said = capsys.readouterr()
    name = "a number of partitions" if more == "-p 6" else more.split()[0]
    assert f"--undo goes without {name}\n" in said.err and said.out == ""
    assert tree(built.root) == before


# ---- the parts


def test_ranges() -> None:
    assert intersect([(0, 4), (6, 9)], [(2, 7), (8, 20)]) == ((2, 4), (6, 7), (8, 9))
    assert intersect([], [(0, 1)]) == intersect([(0, 2)], [(2, 3)]) == ()
    assert merge_ranges([(4, 6), (0, 2), (2, 4)]) == ((0, 6),)


def test_logs() -> None:
    text = (
        'v1\n{"batchWatermarkMs":5,"conf":{"spark.sql.shuffle.partitions":"2","a":"ü"}}\n{"x":'
        " 1}\n-"
    )
    changed = offsets_with_partitions(text, 16, name="offsets/3")
    assert changed == text.replace('"2"', '"16"')
    assert (
        commit_with_state_ids('v1\n{"nextBatchWatermarkMs":0}', {0: [["a"]]}, name="c")
        == 'v1\n{"nextBatchWatermarkMs":0}'
    )
    text = 'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["x"]]}}'
    assert commit_with_state_ids(text, {0: [["a"], ["b"]]}, name="c").endswith(
        '{"0":[["a"],["b"]]}}'
    )
    text = 'v2\n{"operatorInfo":{},"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}'
    assert '"numPartitions":9' in operator_metadata_with_partitions(text, 9, name="m")
    for damaged in ("v1", "v1\nx", "v1\n[]", "v1\n{}"):
        with pytest.raises(MillpondError) as caught:
            offsets_with_partitions(damaged, 2, name="offsets/3")
        assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


def test_state_that_is_kept_elsewhere(tmp_path: Path) -> None:
    """Rescale a query whose state is elsewhere.

    The rescale writes the logs where Spark reads them, and the manifests where the state is. It
    notices a running query.
    """
    built = CheckpointBuilder(tmp_path / "ckpt", partitions=4, groups=KeyGroups(48, 12)).build()
    state = MemoryStorage()
    for info in list(built.storage.list("")):
        if not spark_names.is_sparks(info.key):
            state.put_bytes(info.key, built.storage.read(info.key))
            built.storage.delete([info.key])
    split = SplitStorage(built.storage, state)
    beat = json.dumps({"host": "elsewhere", "pid": 1, "interval_ms": 10**6})
    built.storage.put_bytes(f"{layout.RUNNING_PREFIX}run.json", beat.encode())
    assert [beat.run_id for beat in heartbeats(split)] == ["run"]
    built.storage.delete([f"{layout.RUNNING_PREFIX}run.json"])
    before = {info.key for info in state.list("")}
    rescale(split, str(built.root), 8)
    assert read_spark_metadata(split).partitions == 8
    assert any(key.endswith(".manifest") for key in {info.key for info in state.list("")} - before)
    assert verify(split, "it").problems == []
    assert not [info.key for info in built.storage.list("") if not spark_names.is_sparks(info.key)]
