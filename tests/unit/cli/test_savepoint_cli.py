"""The savepoint commands: their words, their JSON as the guide lists it, their exit codes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond import savepoint
from millpond.cli.main import main
from millpond.format import layout
from millpond.query.index import decode_index, encode_index
from tests.checkpoints import CheckpointBuilder, tree
from tests.row_checkpoints import RowsBuilder

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CheckpointBuilder:
    return RowsBuilder(tmp_path_factory.mktemp("cli") / "job").build()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def listed(repository: Path, command: str) -> set[str]:
    """Return the fields that the guide names for a command, without those in brackets."""
    text = (repository / "docs/guides/savepoints.md").read_text()
    (row,) = [line for line in text.splitlines() if re.match(rf"\|[^|]*`{command}`[^|]*\|", line)]
    return set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row.split("|")[2])))


def test_json_is_what_the_guide_lists(
    built: CheckpointBuilder, run: Run, tmp_path: Path, repository: Path
) -> None:
    place = tmp_path / "saved"
    commands: list[tuple[str, list[Any], int]] = [
        ("create", ["savepoint", "create", built.root, place], 0),
        ("show", ["savepoint", "show", place], 0),
        ("list", ["savepoint", "list", tmp_path], 0),
        ("verify", ["savepoint", "verify", place], 0),
        ("restore", ["savepoint", "restore", place, tmp_path / "new", "--map-operator", "0=2"], 0),
        ("fork", ["fork", built.root, tmp_path / "fork", "--batch", "3", "--dry-run"], 0),
        ("diff", ["savepoint", "diff", place, built.root], 0),
        ("delete", ["savepoint", "delete", place], 0),
    ]
    for name, arguments, expected in commands:
        code, out, err = run(*arguments, "--json")
        assert (code, err) == (expected, ""), name
        fields = listed(repository, name)
        if name == "show":
            fields |= {
                "batch",
                "planned_batch",
                "query_id",
                "provider",
                "spark_checkpoint_format",
                "partitions",
            }
            fields |= {
                "max_parallelism",
                "key_group_base",
                "watermark_ms",
                "timestamp_ms",
                "operators",
                "sink",
            }
            fields -= {"image"}
        elif name == "list":
            fields -= {"show", "savepoint", "kind", "message"}
        assert set(json.loads(out)) == fields, name


def test_show_prints_where_kafka_goes_on(
    built: CheckpointBuilder, run: Run, tmp_path: Path
) -> None:
    """It is after the committed batch, 5, whatever Spark had begun to read after it."""
    job = built.copy_to(tmp_path / "job").root
    for batch, end in (("5", 1234), ("6", 9999)):
        log = Path(job) / "offsets" / batch
        text = (log if log.exists() else log.with_name("5")).read_text()
        head = text.splitlines()[:2]
        log.write_text("\n".join([*head, f'{{"clicks":{{"11":8,"2":{end}}}}}']))
    place = tmp_path / "of" / "saved"
    assert run("savepoint", "create", job, place)[0] == 0
    code, out, _ = run("savepoint", "show", place)
    assert code == 0
    assert out.splitlines()[-4:] == [
        "",
        "source  topic   partition  next offset",
        "0       clicks          2        1,234",
        "0       clicks         11            8",
    ]
    offsets = [
        {"source": "0", "topic": "clicks", "partition": 2, "offset": 1234},
        {"source": "0", "topic": "clicks", "partition": 11, "offset": 8},
    ]
    assert json.loads(run("savepoint", "show", place, "--json")[1])["kafka_offsets"] == offsets
    (listed,) = json.loads(run("savepoint", "list", place.parent, "--json")[1])["savepoints"]
    assert listed["kafka_offsets"] == offsets

    (place / f"offsets/{5}").unlink()
    code, out, err = run("savepoint", "show", place)
    assert (code, out) == (1, "") and "SAVEPOINT_DAMAGED" in err and "offsets/5" in err
    assert run("savepoint", "delete", place)[0] == 0, "what is damaged can be deleted"


def test_words(built: CheckpointBuilder, run: Run, tmp_path: Path) -> None:
    place = tmp_path / "saved"
    code, out, err = run("savepoint", "create", built.root, place, "--dry-run")
    assert (
        code == 0
        and "batch         5" in out
        and "nothing was written" in err
        and not place.exists()
    )
    assert run("savepoint", "create", built.root, place, "--copy")[0] == 0
    assert "stateStoreSave" in run("savepoint", "show", place)[1]
    assert "problems    0" in run("savepoint", "verify", place)[1]
    code, out, _ = run(
        "savepoint", "restore", place, tmp_path / "new", "--drop-operator", "0", "--keep-query-id"
    )
    assert code == 0 and "dropped       0" in out
    code, out, _ = run(
        "savepoint",
        "restore",
        place,
        tmp_path / "wide",
        "--partitions",
        "4",
        "--max-parallelism",
        "32",
    )
    assert code == 0 and "partitions    4" in out
    code, out, err = run("savepoint", "delete", place, "--dry-run")
    assert code == 0 and "nothing was deleted" in err and place.exists()
    path = next((place / "state/0/0").glob("*.changelog"))
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = run("savepoint", "verify", place)
    assert code == 1 and "SAVEPOINT_DAMAGED" in out and "hint: " in err
    (place / "savepoint.json").write_bytes(b"MILLPOND savepoint 2 00000000 0\n")
    code, out, err = run("savepoint", "list", tmp_path)
    assert code == 1 and "FORMAT_TOO_NEW" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "nowhere", "x"],
        ["create", "{job}", "{job}"],
        ["create", "{job}", "x", "--batch", "-1"],
        ["create", "{job}", "x", "--format", "odd"],
        ["restore", "{job}", "x"],
        ["restore", "{job}", "x", "--map-operator", "1"],
        ["restore", "{job}", "x", "--map-operator", "a=b"],
        ["restore", "{job}", "x", "--offsets", "some"],
        ["show", "{job}"],
        ["verify", "nowhere"],
        ["list", "nowhere"],
        ["delete", "{job}"],
        ["diff", "{job}", "nowhere"],
    ],
    ids=" ".join,
)
def test_wrong_input(
    built: CheckpointBuilder,
    run: Run,
    tmp_path: Path,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("savepoint", *(text.format(job=built.root) for text in arguments))
    assert (code, out) == (2, "") and err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["savepoint", "delete", ""],
        ["savepoint", "diff", "", "."],
        ["savepoint", "show", " "],
        ["state", "erase", "", "--key", "k=1"],
        ["rescale", "", "8"],
        ["fork", ".", ""],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("inside", ["job", "saved"])
def test_an_empty_path_is_not_the_working_directory(
    built: CheckpointBuilder,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    inside: str,
) -> None:
    """`millpond savepoint delete "$PLACE"`, with no PLACE set, deleted the savepoint around it."""
    built.copy_to(tmp_path / "job")
    savepoint.create(tmp_path / "job", tmp_path / "saved")
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path / inside)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and "INVALID_ARGUMENT" in err and "is empty" in err
    assert tree(tmp_path) == before


def test_an_operator_that_is_mapped_twice(
    built: CheckpointBuilder, run: Run, tmp_path: Path
) -> None:
    code, _, err = run(
        "fork", built.root, tmp_path / "x", "--map-operator", "0=1", "--map-operator", "0=2"
    )
    assert code == 2 and "OPERATOR_UNKNOWN" in err


def test_a_watermark_after_the_year_9999(run: Run, tmp_path: Path) -> None:
    """As an event gives that has microseconds for milliseconds. It was an INTERNAL error."""
    built = RowsBuilder(tmp_path / "job").build()
    built.storage.put_bytes("commits/5", b'v1\n{"nextBatchWatermarkMs":1700000000000000}')
    assert run("savepoint", "create", built.root, tmp_path / "saved")[0] == 0
    code, out, err = run("savepoint", "show", tmp_path / "saved")
    assert (code, err) == (0, "")
    assert "watermark          1,700,000,000,000,000 ms" in out.splitlines()


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_no_stored_text_reaches_the_terminal_as_it_is(
    run: Run, tmp_path: Path, repository: Path, kind: str
) -> None:
    """A stranger's savepoint could set the window's title, and with OSC 52 the clipboard."""
    place = tmp_path / "saved"
    shutil.copytree(repository / f"tests/golden/v1/savepoint-{kind}", place)
    index = decode_index((place / layout.SAVEPOINT_KEY).read_bytes())
    evil = "\x1b]0;owned\x07\x9b31m"
    operators = tuple(replace(one, name=one.name + evil) for one in index.image.operators)
    image = replace(index.image, query_id=evil, operators=operators)
    forged = replace(index, created_by=evil, image=image)
    (place / layout.SAVEPOINT_KEY).write_bytes(encode_index(forged))
    for arguments in (["show", place], ["list", tmp_path], ["verify", place]):
        _, out, err = run("savepoint", *arguments)
        assert not set("\x1b\x07\x9b") & set(out + err), arguments
    assert "\\x1b]0;owned\\x07\\x9b31m" in run("savepoint", "show", place)[1]
