"""The command.

It writes data to stdout, and errors with kind and hint to stderr. Its exit code is 0, 1 or 2, or
that of a shell where a signal ended it, or a pipe without a reader. It never prints a traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from millpond import __version__, config
from millpond.api import MASTERS
from millpond.cli.main import main
from millpond.cli.output import bytes_text, count_text
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.model.ids import StoreId, VersionId
from millpond.model.key_groups import KeyGroups
from millpond.operations import inspect
from millpond.rows.encode import encode_rows
from tests.checkpoints import CheckpointBuilder
from tests.conftest import Golden
from tests.examples import changelog_bytes
from tests.row_checkpoints import VALUE, RowsBuilder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CheckpointBuilder:
    return CheckpointBuilder(tmp_path_factory.mktemp("cli") / "check point").build()


Captured = pytest.CaptureFixture[str]


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"millpond {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["checkpoint"],
        ["checkpoint", "show"],
        ["conf", "--master", "mesos"],
        ["options", "x"],
    ],
)
def test_wrong_usage(argv: list[str], capsys: Captured) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "usage: millpond" in captured.err


@pytest.mark.parametrize(
    "argv", [["--help"], ["checkpoint", "--help"], ["checkpoint", "verify", "--help"]]
)
def test_help(argv: list[str], capsys: Captured) -> None:
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert "usage: millpond" in captured.out and captured.err == ""


def test_show(built: CheckpointBuilder, capsys: Captured, golden: Golden, repository: Path) -> None:
    assert main(["checkpoint", "show", str(built.root)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    # The sizes of compressed files and SSTs depend on the versions of the libraries. The test
    # compares everything else.
    text = captured.out.replace(str(built.root), "/data/checkpoint")
    for size in sorted({bytes_text(n) for n in _sizes(built)}, key=len, reverse=True):
        text = text.replace(size, "N" * len(size))
    golden.check(repository / "tests/golden/v1/show.txt", text.encode())


def _sizes(built: CheckpointBuilder) -> set[int]:
    assert main(["checkpoint", "show", "--json", str(built.root)]) == 0
    sizes: set[int] = set()
    for column in ("changelog", "sst"):
        partial = [
            sum(
                i.size_bytes
                for i in built.storage.list(layout.store_prefix(store))
                if i.key.endswith("." + column)
            )
            for store in built.stores()
        ]
        sizes |= {*partial, sum(partial)}
    return sizes


def test_show_json(built: CheckpointBuilder, capsys: Captured) -> None:
    assert main(["checkpoint", "show", "--json", f"file:{built.root}"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["checkpoint"] == f"file:{built.root}"
    assert value["query_id"] == "8a3b7c9e-0000-4000-8000-000000000001"
    assert (value["partitions"], value["max_parallelism"], value["key_group_base"]) == (2, 16, 2)
    assert (value["first_offset_batch"], value["last_committed_batch"]) == (0, 5)
    assert (value["spark_checkpoint_format"], value["problems"]) == (1, [])
    (operator,) = value["operators"]
    assert (operator["operator"], operator["name"]) == (0, "stateStoreSave")
    first, second = operator["stores"]
    assert (first["partition"], first["name"], first["keys"]) == (0, "default", 6)
    assert (first["oldest_version"], first["newest_version"], first["changelogs"]) == (1, 6, 6)
    assert first["slots"] == [[0, 8]] and second["slots"] == [[8, 16]]
    assert (first["scalable"], first["unreferenced_bytes"], first["sst_files"]) == (True, 0, 2)
    older, newer = first["snapshots"]
    assert (older["version"], older["ssts"], older["keys"], older["manifest"]) == (
        3,
        1,
        3,
        "3.manifest",
    )
    assert (newer["version"], newer["ssts"], newer["keys"]) == (5, 2, 5)
    assert newer["bytes"] == first["sst_bytes"] > older["bytes"] > 0


def test_relative_path(
    built: CheckpointBuilder, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(built.root.parent)
    assert main(["checkpoint", "show", built.root.name]) == 0
    assert str(built.root) in capsys.readouterr().out


def test_show_with_a_damaged_file(
    built: CheckpointBuilder, tmp_path: Path, capsys: Captured
) -> None:
    copy = built.copy_to(tmp_path / "copy")
    key = layout.manifest_key(StoreId(0, 1), VersionId(5), 1)
    copy.storage.put_bytes(key, b"nonsense")
    assert main(["checkpoint", "show", str(copy.root)]) == 1
    captured = capsys.readouterr()
    assert "partition" in captured.out and key in captured.err


def test_show_what_cannot_be_rescaled(
    built: CheckpointBuilder, tmp_path: Path, capsys: Captured
) -> None:
    copy = built.copy_to(tmp_path / "copy")
    header = copy.header(StoreId(0, 1), 6)
    header = replace(
        header,
        key_groups=replace(header.key_groups, scalable=False, reason="hash of another column"),
    )
    copy.storage.put_bytes(
        layout.changelog_key(StoreId(0, 1), VersionId(6), 1), changelog_bytes(header, [])
    )
    assert main(["checkpoint", "show", str(copy.root)]) == 0
    assert "partition 1 cannot be rescaled: hash of another column" in capsys.readouterr().out


def test_verify(built: CheckpointBuilder, capsys: Captured) -> None:
    assert main(["checkpoint", "verify", str(built.root)]) == 0
    captured = capsys.readouterr()
    assert "problems    0" in captured.out and "snapshots   4 (16 entries)" in captured.out
    assert captured.err == ""


def test_verify_finds_a_problem(built: CheckpointBuilder, tmp_path: Path, capsys: Captured) -> None:
    copy = built.copy_to(tmp_path / "copy")
    key = layout.changelog_key(StoreId(0, 0), VersionId(6), 1)
    copy.storage.put_bytes(key, copy.storage.read(key)[:-1])
    assert main(["checkpoint", "verify", str(copy.root)]) == 1
    captured = capsys.readouterr()
    assert f"CHANGELOG_DAMAGED  {key}: ends early: truncated" in captured.out
    assert "hint: " in captured.err
    assert main(["checkpoint", "verify", "--json", str(copy.root)]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["ok"] is False
    assert {"kind": "CHANGELOG_DAMAGED", "file": key}.items() <= value["problems"][0].items()
    assert set(value["problems"][0]) == {"kind", "file", "message", "hint"}


@pytest.mark.parametrize("action", ["show", "verify"])
def test_bad_input(action: str, tmp_path: Path, capsys: Captured) -> None:
    for location, kind in (
        (str(tmp_path), "NOT_A_CHECKPOINT"),
        (str(tmp_path / "nothing"), "NOT_A_CHECKPOINT"),
        ("gs://bucket/x", "STORAGE_UNSUPPORTED"),
        ("file:relative", "INVALID_ARGUMENT"),
    ):
        assert main(["checkpoint", action, location]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert (
            lines[0].startswith(f"millpond: {kind}: ")
            and lines[1].startswith("  hint: ")
            and len(lines) == 2
        )


def test_a_bug_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(inspect, "overview", fail)
    monkeypatch.delenv("MILLPOND_DEBUG", raising=False)
    assert main(["checkpoint", "show", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "millpond: INTERNAL: ZeroDivisionError: oops"
    monkeypatch.setenv("MILLPOND_DEBUG", "1")
    assert main(["checkpoint", "show", str(tmp_path)]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_options(capsys: Captured) -> None:
    assert main(["options"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{option.name} = " in text for option in config.OPTIONS)
    assert main(["options", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["options"]] == list(
        config.BY_NAME
    )


def test_errors(capsys: Captured) -> None:
    assert main(["errors"]) == 0
    text = capsys.readouterr().out
    assert all(f"{kind.value}  (" in text for kind in ErrorKind)
    assert main(["errors", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {kind.value for kind in ErrorKind}


@pytest.mark.parametrize("master", sorted(MASTERS))
def test_conf(master: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def conf_lines(master: str | None = None) -> list[str]:
        asked.append(master)
        return ["spark.jars x.jar", "spark.sql.extensions y"]

    monkeypatch.setattr("millpond.spark.session.conf_lines", conf_lines)
    assert main(["conf", "--master", master]) == 0
    assert capsys.readouterr().out == "spark.jars x.jar\nspark.sql.extensions y\n"
    assert asked == [MASTERS[master]]


@pytest.mark.parametrize("command", ["errors", "state read @ --format csv", "rescale @ 8"])
@pytest.mark.parametrize("both", [False, True])
def test_reader_that_has_seen_enough(
    tmp_path: Path, repository: Path, command: str, both: bool
) -> None:
    """`millpond errors | head -1` does not complain about the broken pipe. Its exit code is that of
    other commands: it was 0, also of one that had not done its work.
    """
    root = RowsBuilder(tmp_path / "job").build().root
    environment = {**os.environ, "PYTHONPATH": str(repository / "python/src")}
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", "millpond.cli.main", *command.replace("@", str(root)).split()],
        env=environment,
        stdout=writes,
        stderr=writes if both else subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writes)
    assert (done.returncode, done.stderr or "") == (141, "")


@pytest.mark.parametrize(
    ("command", "closed", "code", "said"),
    [
        ("errors", 1, 1, True),
        ("state read @ --format json", 1, 1, True),
        ("--help", 1, 1, True),
        ("errors", 2, 0, False),
        ("state read @/nowhere", 2, 2, False),
        ("errors", 0, 0, False),
    ],
)
def test_a_standard_stream_that_is_closed(
    tmp_path: Path, repository: Path, command: str, closed: int, code: int, said: bool
) -> None:
    """As by `>&-`. It was told as INTERNAL, and the next file that was opened got its number: what
    a process that the command starts printed would have gone there.
    """
    root = RowsBuilder(tmp_path / "job").build().root
    looks = (
        "import os, subprocess, sys; from millpond.cli.main import main; code = main(sys.argv[1:]);"
        " assert os.open(os.devnull, os.O_RDONLY) > 2;"
        " subprocess.run([sys.executable, '-c', 'import os; [os.fstat(n) for n in range(3)]'],"
        " check=True); sys.exit(code)"
    )
    words = [sys.executable, "-c", looks, *command.replace("@", str(root)).split()]
    environment = {**os.environ, "PYTHONPATH": str(repository / "python/src")}
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}>&-', "bash", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    told = "millpond: STORAGE_UNAVAILABLE: cannot write to stdout: Bad file descriptor\n"
    hint = "  hint: Free space where stdout goes, or send it elsewhere.\n"
    assert (done.returncode, done.stderr) == (code, told + hint if said else "")


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "command",
    [
        "state read @",
        "state read @ --format csv",
        "state list @ --json",
        "options",
    ],
)
def test_a_full_disk_behind_stdout(
    tmp_path: Path, repository: Path, command: str, buffered: bool
) -> None:
    """It was told as a defect, and Python complained once more when it closed stdout."""
    root = RowsBuilder(tmp_path / "job").build().root
    words = command.replace("@", str(root)).split()
    environment = {**os.environ, "PYTHONPATH": str(repository / "python/src")}
    environment["PYTHONUNBUFFERED"] = "" if buffered else "1"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "millpond.cli.main", *words],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "millpond: LOCAL_DISK_FULL: cannot write to stdout: No space left on device\n"
        "  hint: Free space where stdout goes, or send it elsewhere.\n",
    )


class Letters(RowsBuilder):
    """Its values have letters that some encodings lack."""

    def value(self, store: StoreId, version: int) -> bytes:
        (row,) = encode_rows(pa.array([{"n": "é\U0001f600"}]), VALUE).to_pylist()
        return b"\0" + bytes(row)


def in_encoding(
    encoding: str, repository: Path, *words: str | Path
) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process whose stdout has this encoding."""
    return subprocess.run(
        [sys.executable, "-m", "millpond.cli.main", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(repository / "python/src"),
            "PYTHONIOENCODING": encoding,
        },
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_name_that_stdout_cannot_show(tmp_path: Path, repository: Path, encoding: str) -> None:
    """It was told as INTERNAL, also when the savepoint was there already."""
    job = RowsBuilder(tmp_path / os.fsdecode(b"caf\xe9")).build().root
    saved = tmp_path / os.fsdecode(b"sav\xe9")
    commands: list[list[str | Path]] = [
        ["checkpoint", "show", job],
        ["savepoint", "create", job, saved],
        ["savepoint", "show", saved],
        ["savepoint", "list", tmp_path],
        ["savepoint", "delete", saved],
    ]
    for words in commands:
        done = in_encoding(encoding, repository, *words)
        assert (done.returncode, done.stderr) == (0, b""), words
        assert rb"\udce9" in done.stdout, words
    assert not saved.exists()


def test_rows_that_stdout_cannot_show(tmp_path: Path, repository: Path) -> None:
    """Programs get them whole or not at all, and people see which letters they are."""
    job = Letters(tmp_path / "job").build(batches=2, snapshots=()).root
    read = ("state", "read", job, "--format")
    for encoding in ("ascii", "latin-1", "utf-8", "utf-16"):
        done = in_encoding(encoding, repository, *read, "json")
        assert (done.returncode, done.stderr) == (0, b"")
        rows = [json.loads(line) for line in done.stdout.decode(encoding).splitlines()]
        assert {row["value"]["n"] for row in rows} == {"é\U0001f600"}
    whole = in_encoding("utf-8", repository, *read, "csv")
    assert whole.returncode == 0 and "é\U0001f600" in whole.stdout.decode()
    for encoding in ("ascii", "iso8859-1"):
        done = in_encoding(encoding, repository, *read, "csv")
        assert (done.returncode, done.stdout) == (2, b"")
        said = done.stderr.decode()
        assert f"INVALID_ARGUMENT: stdout has the encoding {encoding}" in said
        assert "PYTHONIOENCODING=utf-8" in said and "--output" in said
    table = in_encoding("ascii", repository, *read, "table")
    assert table.returncode == 0 and rb"\xe9\U0001f600" in table.stdout


def test_numbers_for_people() -> None:
    sizes = [0, 1023, 1024, 1536, 12 * 1024**2, 5 * 1024**3, 3 * 1024**4, 9000 * 1024**4]
    assert [bytes_text(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "12.0 MiB",
        "5.0 GiB",
        "3.0 TiB",
        "9000.0 TiB",
    ]
    assert [count_text(n) for n in (None, 0, 1234567)] == ["-", "0", "1,234,567"]


def test_of_many_partitions_the_sums_are_shown(tmp_path: Path, capsys: Captured) -> None:
    builder = RowsBuilder(tmp_path / "job", partitions=200, groups=KeyGroups(400, 200))
    root = str(builder.build(2, snapshots=()).root)
    assert main(["checkpoint", "show", root]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20
    (sums,) = [line.split() for line in lines if "stateStoreSave" in line]
    assert sums[:5] == ["0", "stateStoreSave", "default", "200", "400"]
    assert sums[5:8] == ["2", "to", "2"]
    (paste,) = [line.split() for line in lines if line.startswith("each partition: ")]
    assert main(paste[3:]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 200
    assert main(["checkpoint", "show", root, "--operator", "stateStoreSave"]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "show", root, "--operator", "7"]) == 2
    assert "0 (stateStoreSave)" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["4"], ["-p", "4"], ["--partitions", "4"], ["4", "-p", "4"]])
def test_partitions_of_a_rescale(tmp_path: Path, capsys: Captured, given: list[str]) -> None:
    root = str(RowsBuilder(tmp_path / "job").build().root)
    assert main(["rescale", root, *given, "--dry-run"]) == 0
    assert "2 -> 4" in capsys.readouterr().out
    assert main(["rescale", root, "4", "-p", "8"]) == 2
    assert "both 4 and 8" in capsys.readouterr().err


def test_few_keys_are_no_alarm(tmp_path: Path, capsys: Captured) -> None:
    root = str(RowsBuilder(tmp_path / "job").build(5, snapshots=()).root)
    assert main(["checkpoint", "skew", root]) == 0
    text = capsys.readouterr().out
    assert "suggested partitions: 2 (8 keys are too few" in text
    assert "hot" not in text and "times the mean" not in text
