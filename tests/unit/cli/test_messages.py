"""Errors as the user reads them who caused them: each says what is wrong, and what to run.

The default hint of a kind cannot know the user's paths. So these tests hold what is to be pasted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.operations.migrate.plan import PROVIDERS, ROCKSDB
from tests.row_checkpoints import RowsBuilder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with what a user may have: a query, one of Spark's own, a savepoint."""
    root = tmp_path_factory.mktemp("world")
    built = RowsBuilder(root / "job").build()
    savepoint.create(built.root, root / "saved")
    foreign = RowsBuilder(root / "foreign", provider=PROVIDERS[ROCKSDB])
    foreign.spark_logs(4)
    shutil.rmtree(root / "foreign" / layout.MILLPOND_DIR)
    for partition in range(foreign.partitions):
        (root / f"foreign/state/0/{partition}").mkdir(exist_ok=True)
        (root / f"foreign/state/0/{partition}/4.zip").write_bytes(b"")
    (root / "file").write_text("a file")
    (root / "full").mkdir()
    (root / "full" / "mine").write_text("mine")
    (root / "change.py").write_text("def change(rows):\n    return rows.nothing\n")
    RowsBuilder(root / "begun").build()
    shutil.copy(root / "begun/offsets/5", root / "begun/offsets/6")
    running = RowsBuilder(root / "running").build()
    beat = {"run_id": "r", "host": "elsewhere", "pid": 1, "interval_ms": 600_000}
    (running.root / "millpond/running").mkdir(parents=True)
    (running.root / "millpond/running/r.json").write_text(json.dumps(beat))
    damaged = RowsBuilder(root / "damaged").build()
    (damaged.root / "state/0/0/6.changelog").write_bytes(b"MPCL")
    lost = RowsBuilder(root / "lost").build(snapshots=())
    (lost.root / "state/0/0/2.changelog").unlink()
    sst_lost = RowsBuilder(root / "sst-lost").build()
    for path in (*sst_lost.root.rglob("*.sst"), *sst_lost.root.rglob("1.changelog")):
        path.unlink()
    return root


# The command, its kind, and what the hint must say. @ is the world's directory.
CASES: list[tuple[str, ErrorKind, str]] = [
    ("checkpoint show @/none", ErrorKind.NOT_A_CHECKPOINT, "If it was deleted, bring it back"),
    ("state read @/file", ErrorKind.NOT_A_CHECKPOINT, "checkpointLocation"),
    ("rescale @/saved --partitions 4", ErrorKind.NOT_A_CHECKPOINT, "savepoint restore @/saved"),
    *(
        (command, ErrorKind.FOREIGN_CHECKPOINT, "millpond adopt @/foreign @/foreign-millpond")
        for command in (
            "checkpoint show @/foreign",
            "checkpoint skew @/foreign",
            "savepoint create @/foreign @/new",
            "rescale @/foreign --partitions 4",
            "state history @/foreign --key k=1",
            "state blame @/foreign",
        )
    ),
    ("adopt @/job @/new", ErrorKind.INVALID_ARGUMENT, "millpond fork"),
    ("adopt @/foreign @/file/new", ErrorKind.STORAGE_DENIED, "may make a directory"),
    ("adopt @/foreign /proc/new", ErrorKind.STORAGE_DENIED, "may make a directory"),
    ("savepoint create @/job /proc/new", ErrorKind.STORAGE_DENIED, "may make a directory"),
    ("adopt @/foreign @/full", ErrorKind.TARGET_NOT_EMPTY, "does not exist or is empty"),
    ("state read @/job --output @/file", ErrorKind.TARGET_NOT_EMPTY, "Name a file that does not"),
    ("savepoint create @/job @/new --batch 99", ErrorKind.BATCH_NOT_COMMITTED, "checkpoint show"),
    ("rescale @/begun --partitions 4", ErrorKind.BATCH_NOT_COMMITTED, "Start the query once"),
    ("rescale @/running --partitions 4", ErrorKind.QUERY_RUNNING, "Stop the query first"),
    ("rescale @/job --partitions 0", ErrorKind.PARTITIONS_INVALID, "Choose another number"),
    ("rescale @/job --partitions 2", ErrorKind.PARTITIONS_INVALID, "Nothing is to be done"),
    (
        "rescale @/job --partitions 3 --max-parallelism 7",
        ErrorKind.MAX_PARALLELISM_INVALID,
        "Set maxParallelism to 6 or 9",
    ),
    ("rescale @/job", ErrorKind.INVALID_ARGUMENT, "millpond rescale @/job 16"),
    ("savepoint show @/job", ErrorKind.NOT_A_SAVEPOINT, "savepoint list"),
    ("savepoint list @/none", ErrorKind.INVALID_ARGUMENT, "directory in which the savepoints are"),
    (
        "savepoint restore @/saved @/new --map-operator 7=1",
        ErrorKind.OPERATOR_UNKNOWN,
        "savepoint show",
    ),
    ("savepoint restore @/saved @/new --partitions 0", ErrorKind.INVALID_ARGUMENT, "1 to 65536"),
    (
        "savepoint edit @/saved @/new --function @/change.py",
        ErrorKind.INVALID_ARGUMENT,
        "change.py:change",
    ),
    (
        "savepoint edit @/saved @/new --function @/change.py:change",
        ErrorKind.USER_CODE_FAILED,
        "MILLPOND_DEBUG=1",
    ),
    (
        "savepoint edit @/saved @/new --function @/none.py:f",
        ErrorKind.INVALID_ARGUMENT,
        "Python file that is there",
    ),
    ("savepoint edit @/saved @/new --table @/file", ErrorKind.INVALID_ARGUMENT, "Parquet file"),
    (
        "savepoint bootstrap @/new --job @/job.py --state @/file",
        ErrorKind.INVALID_ARGUMENT,
        "Parquet file that is there",
    ),
    ("savepoint diff @/saved", ErrorKind.INVALID_ARGUMENT, "--batch 3 --batch 7"),
    ("state read @/job --operator 9", ErrorKind.OPERATOR_UNKNOWN, "state list @/job"),
    ("state read @/job --key x", ErrorKind.INVALID_ARGUMENT, "--key order_id=17"),
    ("state read @/job --key k=1 --key k=2", ErrorKind.INVALID_ARGUMENT, "each column once"),
    ("state erase @/job --key k=1 --key k=2", ErrorKind.INVALID_ARGUMENT, "each column once"),
    ("state read @/job --key x=1", ErrorKind.INVALID_ARGUMENT, "A key here is: k long"),
    ("state read @/job --key k=a", ErrorKind.INVALID_ARGUMENT, "--key k=1"),
    ("state read @/job --format parquet", ErrorKind.INVALID_ARGUMENT, "--output state.parquet"),
    ("state read @/job --output @/gone/x.csv", ErrorKind.INVALID_ARGUMENT, "that is there"),
    ("state read @/job --conf a=b", ErrorKind.INVALID_ARGUMENT, "--engine spark"),
    ("checkpoint show @/job -o nope=1", ErrorKind.UNKNOWN_OPTION, "millpond options"),
    ("checkpoint show @/job -o gc.graceMs=-5", ErrorKind.INVALID_OPTION, "from 0 to 604800000"),
    ("checkpoint show @/job -o x", ErrorKind.INVALID_ARGUMENT, "-o storage.s3.region="),
    ("checkpoint show hdfs://h/x", ErrorKind.STORAGE_UNAVAILABLE, "a host that nobody knows"),
    ("storage check s3://", ErrorKind.INVALID_ARGUMENT, "s3://bucket/prefix"),
    ("storage take-over @/job", ErrorKind.INVALID_ARGUMENT, "can be started"),
    ("fork @/damaged @/new", ErrorKind.CHANGELOG_DAMAGED, "--batch 4"),
    ("fork @/lost @/new", ErrorKind.CHANGELOG_MISSING, "millpond fork @/lost"),
    ("fork @/job @/new --file-sink @/full", ErrorKind.FILE_SINK_INVALID, "does not exist"),
]


_DAMAGE = (ErrorKind.CHANGELOG_DAMAGED, ErrorKind.CHANGELOG_MISSING)


@pytest.mark.parametrize(("command", "kind", "hint"), CASES, ids=[case[0] for case in CASES])
def test_the_hint_says_what_to_do(
    world: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    kind: ErrorKind,
    hint: str,
) -> None:
    monkeypatch.setattr("millpond.spark.heartbeats._ENDING_S", 0.0)
    words = [word.replace("@", str(world)) for word in command.split()]
    assert main(words) in (1, 2)
    text = capsys.readouterr().err
    first, _, rest = text.partition("\n  hint: ")
    assert first.startswith(f"millpond: {kind.value}: "), text
    assert hint.replace("@", str(world)) in rest, text
    assert "--help" not in rest
    assert "checkpoint verify" not in rest or kind in _DAMAGE, text
    assert not (world / "new").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("fork @/damaged @/new", 1),
        ("fork @/lost @/new", 1),
        ("fork @/sst-lost @/new", 1),
        ("savepoint create @/job @/new --batch 99", 2),
        ("fork @/none @/new", 2),
    ],
)
def test_damage_is_no_wrong_usage(
    world: Path, capsys: pytest.CaptureFixture[str], command: str, code: int
) -> None:
    words = [word.replace("@", str(world)) for word in command.split()]
    assert main(words) == code, capsys.readouterr().err


def test_a_notebook_shows_the_hint(world: Path) -> None:
    with pytest.raises(Exception, match="Hint: ") as error:
        savepoint.create(world / "foreign", world / "new")
    told: Any = str(error.value)
    assert f"millpond adopt {world}/foreign" in told
