"""What `bootstrap` checks and writes without Spark.

These are offsets, the place beside the target, and the command's words.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond import savepoint
from millpond.cli import bootstrap as command
from millpond.cli.main import main
from millpond.errors import ErrorKind, InvalidInputError
from millpond.operations.output.atomic_target import building, scratch_beside
from millpond.savepoint import BootstrapOperator, BootstrapReport, BootstrapSource
from millpond.spark.offsets import check_offsets, offset_texts
from tests.row_checkpoints import RowsBuilder

REPORT = BootstrapReport(
    checkpoint="/new",
    query="counts",
    batch=0,
    query_id="b0c7",
    watermark_ms=1_704_067_195_000,
    partitions=2,
    max_parallelism=256,
    sources=(
        BootstrapSource(source=0, name="kafka", rows=1_500_000, offset={"topic": {"0": 23}}),
        BootstrapSource(source=1, name="rate", rows=None, offset=None),
    ),
    operators=(BootstrapOperator(operator=0, name="dedupe", keys=-1),),
    bytes_written=2048,
    dry_run=True,
)


def test_offsets_as_the_log_has_them() -> None:
    given: dict[Any, object] = {0: {"topic": {"0": 23}}, "2": '{ "offset": 7 }', 3: "41", 4: 41}
    assert offset_texts(given) == {0: '{"topic":{"0":23}}', 2: '{"offset":7}', 3: "41", 4: "41"}


@pytest.mark.parametrize(
    "offsets",
    [[1], {-1: 1}, {True: 1}, {"one": 1}, {0: "{"}, {0: ""}, {0: None}, {0: "null"}, {0: {1, 2}}, {0: 1, "0": 2}, {0: float("nan")}],
    ids=repr,
)  # fmt: skip
def test_offsets_that_are_none(offsets: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        offset_texts(offsets)
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


def test_offsets_of_sources_that_are_not_there_or_read_files() -> None:
    check_offsets({0: "1", 1: "2"}, 2, [False, False])
    for offsets, sources, files, message in (
        ({0: "1"}, 0, [False], "there is no source 0; the query has none"),
        ({1: "1"}, 1, [False], "has number 0 only"),
        ({0: "1", 5: "1"}, 3, [False, False], "no source 5; the query has numbers 0 to 2"),
        ({0: "1"}, 1, [True], "reads files"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            check_offsets(offsets, sources, files)


def test_restored_with_offsets(tmp_path: Path) -> None:
    """`bootstrap` hands these offsets to `fork`, which takes them for any savepoint."""
    built = RowsBuilder(tmp_path / "job").build()
    (built.root / "sources/0").mkdir(parents=True)
    (built.root / "sources/0/0").write_text("v1\n{}")
    report = savepoint.fork(built.root, tmp_path / "new", offsets={0: {"offset": 77}})
    assert report.offsets == "given"
    sources = [(tmp_path / f"new/offsets/{batch}").read_text().split("\n")[2:] for batch in (4, 5)]
    assert sources == [["-"], ['{"offset":77}']]
    assert not (tmp_path / "new/sources").exists()
    with pytest.raises(InvalidInputError, match="there is no source 1"):
        savepoint.fork(built.root, tmp_path / "other", offsets={1: 5})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "given", [{}, {"rows": 1, "operator": 0}, {"state": [1]}, {"rows": 1, "offsets": {"a": 1}}]
)
def test_refused_before_the_job_is_run(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        millpond.bootstrap(lambda: pytest.fail("the job was run"), tmp_path / "new", **given)
    assert list(tmp_path.iterdir()) == []


def test_target_that_is_not_empty_is_refused_before_the_job_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError) as caught:
        millpond.bootstrap(lambda: pytest.fail("the job was run"), tmp_path, rows=1)
    assert caught.value.kind is ErrorKind.TARGET_NOT_EMPTY


def test_a_place_beside_the_target(tmp_path: Path) -> None:
    """The place is gone in the end, whatever happened.

    What somebody makes meanwhile stays, with the directories above it.
    """
    target = tmp_path / "a/b/target"
    with pytest.raises(ZeroDivisionError), scratch_beside(str(target)) as place:
        Path(place, "file").write_text("x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with scratch_beside(str(target)) as place:
        assert os.path.dirname(place) == str(target.parent)
        with building(str(target)) as built:
            built.storage.put_bytes("file", b"x")
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_what_a_killed_process_left_beside_the_target(tmp_path: Path, repository: Path) -> None:
    target = tmp_path / "target"
    code = (
        "import os, signal, sys\n"
        "from millpond.operations.output.atomic_target import scratch_beside\n"
        "with scratch_beside(sys.argv[1]) as place:\n"
        "    open(place + '/file', 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository / "python/src")}
    killed = subprocess.run([sys.executable, "-c", code, str(target)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name.startswith(".target.staging-") for path in tmp_path.iterdir()] == [True]
    with scratch_beside(str(target)) as place:
        assert [str(path) for path in tmp_path.iterdir()] == [place], (
            "the place of a killed process is removed"
        )
    assert list(tmp_path.iterdir()) == []


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(command, "bootstrap_checkpoint", lambda *given, **options: REPORT)
        code = main(["savepoint", "bootstrap", "/new", "--job", "job.py", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_words_and_json(run: Run, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "offsets.json").write_text('{"0": 5}')
    code, out, err = run("--offsets", tmp_path / "offsets.json")
    assert (code, err) == (0, "millpond: nothing was run or written (--dry-run)\n")
    assert (
        '     0  kafka  1,500,000  {"topic": {"0": 23}}' in out
        and "     1  rate           -  -" in out
    )
    assert "watermark     2023-12-31 23:59:55 UTC" in out
    code, out, _ = run("--json")
    found = json.loads(out)
    assert found == json.loads(json.dumps(REPORT.to_json()))
    guide = (repository / "docs/guides/savepoints.md").read_text()
    (row,) = [line for line in guide.splitlines() if line.startswith("| `bootstrap` |")]
    names = [*found, *found["sources"][0], *found["operators"][0]]
    assert [name for name in names if f"`{name}`" not in row] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--offsets", "nowhere.json"],
        ["--state", "nowhere.parquet"],
        ["--state", "a=x", "--state", "a=y"],
        ["--rows", "x", "--rows", "y"],
        ["--rows", "0=x", "--rows", "y"],
        ["--rows", "0=x", "--rows", "00=y"],
        ["--conf", "x"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and "INVALID_ARGUMENT" in err


def test_paths_that_hold_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "a=1").mkdir()
    path = f"{tmp_path}/a=1"
    assert command._named([path], "--state", numbers=False) == {None: path}
    assert command._named([f"count={path}"], "--state", numbers=False) == {"count": path}
    assert command._named([f"01={path}", "2=x"], "--rows", numbers=True) == {"1": path, "2": "x"}
