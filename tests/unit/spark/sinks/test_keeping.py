"""What commands do for a file sink, and what they refuse."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout, spark_names
from millpond.format.rescale_journal import Journal, decode_journal, encode_journal
from millpond.model.key_groups import KeyGroups
from millpond.operations.rescale import rescale, undo
from millpond.query.rescaling import read_journal
from millpond.spark.sinks import keeping
from millpond.spark.sinks.keeping import SinkPlan, for_start
from millpond.spark.sinks.recorded import FILE, Sink, read_sink
from millpond.storage import LocalStorage, MemoryStorage, open_storage
from tests.checkpoints import CheckpointBuilder, tree
from tests.refusals import refused
from tests.rescale_scenes import interrupt


@pytest.fixture
def built(tmp_path: Path) -> CheckpointBuilder:
    """A query whose batches 0 to 5 are committed."""
    return CheckpointBuilder(tmp_path / "ckpt", partitions=4, groups=KeyGroups(48, 12)).build()


def sink_of(directory: Path, last: int, rows: str = '{"path":"x"}') -> Path:
    """Make a file sink whose log ends with batch `last`."""
    log = directory / "_spark_metadata"
    log.mkdir(parents=True)
    for number in range(last + 1):
        name = f"{number}.compact" if (number + 1) % 10 == 0 else str(number)
        (log / name).write_text(f"v1\n{rows}" if rows else "v1")
        (log / f".{name}.crc").write_text("of Hadoop")
    (directory / "part-0").write_text("rows")
    return directory


def recorded(built: CheckpointBuilder, path: Path | str | None, **more: Any) -> None:
    """Write what a start of the query writes down."""
    value = (
        {"sink": "ConsoleTable"} if path is None else {"sink": "file", "path": str(path), **more}
    )
    (built.root / layout.SINK_KEY).write_text(json.dumps(value))


def start(file_sink: Path | str | None, sink: Sink | None = None, **more: Any) -> SinkPlan:
    """Return what a restore at batch 5 has to do."""
    rest: dict[str, Any] = {"batch": 5, "same_query": False, **more}
    return for_start(file_sink, sink, **rest)


# ---- rescale


def test_the_number_of_a_rescale_is_in_the_log(built: CheckpointBuilder, tmp_path: Path) -> None:
    out = sink_of(tmp_path / "out", 5)
    recorded(built, out.as_uri(), compact_interval=7)
    before = tree(out)
    assert (
        rescale(built.storage, "it", 8, dry_run=True).file_sink == out.as_uri()
        and tree(out) == before
    )
    report = rescale(built.storage, "it", 8)
    assert report.to_json()["file_sink"] == out.as_uri() and report.warnings == ()
    entry = out / "_spark_metadata/6.compact"  # seven entries make one compact entry
    assert entry.read_bytes().split(b"\n") == [b"v1"] + [b'{"path":"x"}'] * 6
    assert {key: data for key, data in tree(out).items() if "6.compact" not in key} == before


def test_a_record_that_cannot_be_read_says_nothing(built: CheckpointBuilder) -> None:
    for text in ("", "{", "[]", '{"sink": 1}', '{"sink": "file"}', '{"sink": "file", "path": 7}'):
        (built.root / layout.SINK_KEY).write_text(text)
        assert read_sink(built.storage) is None, text
    assert "--file-sink DIR" in rescale(built.storage, "it", 8, dry_run=True).warnings[0]
    recorded(built, None)
    assert rescale(built.storage, "it", 8, dry_run=True).warnings == ()
    recorded(built, "file:/x", compact_interval=True)
    assert read_sink(built.storage) == Sink(FILE, "file:/x")


def test_a_sink_that_does_not_fit_is_refused_and_nothing_is_changed(
    built: CheckpointBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "part-0").write_text("rows")
    lacks = sink_of(tmp_path / "lacks", 5)
    (lacks / "_spark_metadata/3").unlink()
    damaged = sink_of(tmp_path / "damaged", 5)
    (damaged / "_spark_metadata/3").write_bytes(b"\xff")
    before = tree(built.root)
    for directory, kind, said in (
        (tmp_path / "nothing", ErrorKind.FILE_SINK_INVALID, "_spark_metadata"),
        (files, ErrorKind.FILE_SINK_INVALID, "_spark_metadata"),
        (files / "part-0", ErrorKind.FILE_SINK_INVALID, "_spark_metadata"),
        (sink_of(tmp_path / "ahead", 6), ErrorKind.FILE_SINK_MISMATCH, "batch 6"),
        (sink_of(tmp_path / "behind", 3), ErrorKind.FILE_SINK_MISMATCH, "batches 4, 5"),
        (lacks, ErrorKind.FILE_SINK_MISMATCH, "batches 3"),
    ):
        e = refused(kind, rescale, built.storage, "it", 8, file_sink=directory)
        assert said in str(e) and str(directory) in str(e) and "--file-sink none" in e.hint
    recorded(built, damaged, compact_interval=7)
    refused(ErrorKind.FORMAT_DAMAGED, rescale, built.storage, "it", 8)
    (built.root / layout.SINK_KEY).unlink()
    before.pop(layout.SINK_KEY)
    assert tree(built.root) == before
    assert main(["rescale", str(built.root), "--partitions", "8", "--file-sink", str(files)]) == 2
    assert "FILE_SINK_INVALID" in capsys.readouterr().err
    assert main(["rescale", str(built.root), "--partitions", "8", "--file-sink", "none"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_batch_that_is_left_out(built: CheckpointBuilder, tmp_path: Path) -> None:
    """If the sink has the batch's rows, they would be there twice.

    If not, the batch's number is used up all the same.
    """
    (built.root / "commits/5").unlink()
    seen, unseen = sink_of(tmp_path / "seen", 5), sink_of(tmp_path / "unseen", 4)
    e = refused(
        ErrorKind.FILE_SINK_MISMATCH,
        rescale,
        built.storage,
        "it",
        8,
        skip_uncommitted=True,
        file_sink=seen,
    )
    assert "twice" in str(e) and "Start the query once" in e.hint
    rescale(built.storage, "it", 8, skip_uncommitted=True, file_sink=unseen)
    assert [(unseen / f"_spark_metadata/{n}").read_bytes() for n in (5, 6)] == [b"v1", b"v1"]


def test_a_rescale_of_before_is_mended(built: CheckpointBuilder, tmp_path: Path) -> None:
    """The offset log tells its number."""
    out = sink_of(tmp_path / "out", 5)
    rescale(built.storage, "it", 8, file_sink="none")
    rescale(built.storage, "it", 4, file_sink=out)
    assert [(out / f"_spark_metadata/{n}").read_bytes() for n in (6, 7)] == [b"v1", b"v1"]


def test_a_log_that_cannot_be_written_to(built: CheckpointBuilder, tmp_path: Path) -> None:
    out = sink_of(tmp_path / "out", 5)
    (out / "_spark_metadata/6").mkdir()
    before = tree(built.root), tree(out)
    refused(ErrorKind.OBJECT_EXISTS, rescale, built.storage, "it", 8, file_sink=out)
    assert (tree(built.root), tree(out)) == before


def test_what_is_taken_back_is_its_own_entry_alone(
    built: CheckpointBuilder, tmp_path: Path
) -> None:
    out = sink_of(tmp_path / "out", 5)
    rescale(built.storage, "it", 8, file_sink=out)
    (built.root / "commits/6").unlink()
    sums = {"_spark_metadata/6": zlib.crc32(b"v1"), "_spark_metadata/5": 1}
    offsets_crc32 = zlib.crc32((built.root / "offsets/6").read_bytes())
    journal = Journal(
        current=4,
        partitions=8,
        batch=6,
        offsets_crc32=offsets_crc32,
        keys=(),
        created_ms=1,
        sink=str(out),
        sink_sums=sums,
    )
    assert decode_journal(encode_journal(journal)) == journal
    (built.root / layout.RESCALE_JOURNAL_KEY).write_bytes(encode_journal(journal))
    assert undo(built.storage, "it") and read_journal(built.storage) is None
    assert not (out / "_spark_metadata/6").exists() and (out / "_spark_metadata/5").exists()


@pytest.mark.parametrize("way", ["undo", "again"])
def test_a_forged_journal_deletes_nothing(
    built: CheckpointBuilder, tmp_path: Path, way: str
) -> None:
    """It named a stranger's files below any directory as entries of the sink's log."""
    interrupt(built, 8)
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis").write_text("years")
    journal = read_journal(built.storage)
    assert journal is not None
    forged = replace(journal, sink=str(home), sink_sums={"thesis": zlib.crc32(b"years")})
    (built.root / layout.RESCALE_JOURNAL_KEY).write_bytes(encode_journal(forged))
    before = tree(built.root)
    call = undo if way == "undo" else rescale
    more = () if way == "undo" else (8,)
    e = refused(ErrorKind.UNSAFE_PATH, call, built.storage, "it", *more)
    assert "thesis" in str(e)
    assert tree(home) == {"thesis": b"years"} and tree(built.root) == before


# ---- restore, fork, bootstrap


def test_a_new_log_holds_all_numbers_from_before(tmp_path: Path) -> None:
    for batch, names in (
        (0, ["0"]),
        (5, ["0", "1", "2", "3", "4", "5"]),
        (11, ["5.compact", "11.compact"]),
        (21, ["9.compact", "19.compact", "20", "21"]),
    ):
        plan = start(tmp_path / "out", batch=batch)
        assert plan.entries is not None
        assert list(plan.entries.files) == [f"_spark_metadata/{name}" for name in names]
        assert set(plan.entries.files.values()) == {b"v1"}


def test_the_sink_of_a_start_that_is_refused(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "part-0").write_text("rows")
    old = Sink(FILE, f"file:{tmp_path}/old")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "old")
    used, ahead = sink_of(tmp_path / "used", 5), sink_of(tmp_path / "ahead", 7)
    for kind, call in (
        (ErrorKind.FILE_SINK_UNKNOWN, lambda: start(None, old)),
        (ErrorKind.FILE_SINK_UNKNOWN, lambda: start(None, old, same_query=True)),
        (ErrorKind.FILE_SINK_MISMATCH, lambda: start(tmp_path / "old", old)),
        (ErrorKind.FILE_SINK_MISMATCH, lambda: start(link, old)),
        (ErrorKind.FILE_SINK_MISMATCH, lambda: start("s3://b/out", Sink(FILE, "s3a://b/out"))),
        (ErrorKind.FILE_SINK_INVALID, lambda: start(files)),
        (ErrorKind.FILE_SINK_INVALID, lambda: start(files / "part-0")),
        (ErrorKind.FILE_SINK_MISMATCH, lambda: start(used)),
        (ErrorKind.FILE_SINK_MISMATCH, lambda: start(ahead, same_query=True)),
        (ErrorKind.FILE_SINK_MISMATCH, lambda: start(used, batch=7, same_query=True)),
        (ErrorKind.FILE_SINK_MISMATCH, lambda: start(used, batch=4, same_query=True)),
    ):
        refused(kind, call)
    assert not (tmp_path / "old").exists()


def test_a_move_goes_on_with_its_log(tmp_path: Path) -> None:
    used = sink_of(tmp_path / "used", 5)
    plan = start(used, same_query=True)
    assert plan.entries is not None and plan.entries.files == {}


def test_nobody_knows_and_there_is_none(tmp_path: Path) -> None:
    assert (
        "--file-sink DIR" in start(None).warnings[0]
        and "_spark_metadata/5 doesn't exist" in start(None).warnings[0]
    )
    for plan in (
        start(None, Sink("ConsoleTable")),
        start("none"),
        start("none", Sink(FILE, "file:/x")),
    ):
        assert plan == SinkPlan()


def test_a_fork_that_fails_leaves_no_log(built: CheckpointBuilder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(ErrorKind.TARGET_NOT_EMPTY, savepoint.fork, built.root, out, file_sink=out)
    assert not [p for p in out.rglob("*") if p.is_file()]
    report = savepoint.fork(built.root, tmp_path / "new", file_sink=out)
    assert read_sink(open_storage(str(tmp_path / "new"))) == Sink(FILE, str(out), 10), (
        "the sink is recorded before the query says so"
    )
    assert report.file_sink == str(out) and len(list((out / "_spark_metadata").iterdir())) == 6
    # A command takes over what a killed command left. It refuses what a query has written to since.
    assert savepoint.fork(built.root, tmp_path / "newer", file_sink=out).file_sink == str(out)
    (out / "_spark_metadata/6").write_text('v1\n{"path":"x"}')
    kind = ErrorKind.FILE_SINK_MISMATCH
    refused(kind, savepoint.fork, built.root, tmp_path / "newest", file_sink=out)


@pytest.mark.parametrize("on", ["disk", "memory"])
def test_a_log_that_a_killed_fork_left_fits_no_other_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    """The query went on. The same fork was refused, and told that another query had written there:
    an empty directory, or --keep-query-id, which makes two queries of one id.
    """
    out = LocalStorage(str(tmp_path / "out")) if on == "disk" else MemoryStorage()
    monkeypatch.setattr(keeping, "_open", lambda root: out)
    root, killed = tmp_path / "out", start(tmp_path / "out", batch=9)
    assert killed.entries is not None
    killed.entries.write()
    out.put_bytes(f"{spark_names.SINK_LOG_PREFIX}.9.compact.crc", b"of Hadoop")
    again = start(root, batch=9)
    assert again.entries is not None and again.entries.files == {}
    for batch in (14, 3):
        e = refused(ErrorKind.FILE_SINK_MISMATCH, start, root, batch=batch)
        assert "killed" in str(e)
        assert "delete _spark_metadata" in e.hint and "--keep-query-id" not in e.hint
    out.put_bytes("of=day/part-0", b"rows that no log names yet")
    e = refused(ErrorKind.FILE_SINK_MISMATCH, start, root, batch=14)
    assert "delete" not in e.hint
    out.delete(info.key for info in list(out.list("")))
    start(root, batch=14)


def _log(out: Path) -> list[str]:
    return sorted(path.name for path in out.rglob("*") if path.is_file())


@pytest.mark.parametrize("ends", ["well", "killed"])
def test_two_forks_to_one_sink_at_once(built: CheckpointBuilder, tmp_path: Path, ends: str) -> None:
    """The second is done while the first copies: the log is its own."""
    out, done = tmp_path / "out", list[savepoint.RestoreReport]()

    def copying(at: int, total: int) -> None:
        if not done:
            done.append(savepoint.fork(built.root, tmp_path / "second", file_sink=out))
            if ends == "killed":
                raise KeyboardInterrupt

    with pytest.raises((MillpondError, KeyboardInterrupt)) as caught:
        savepoint.fork(built.root, tmp_path / "first", file_sink=out, progress=copying)
    if ends == "well":
        assert isinstance(caught.value, MillpondError)
        assert caught.value.kind is ErrorKind.FILE_SINK_MISMATCH
    assert _log(out) == ["0", "1", "2", "3", "4", "5"]
    assert (tmp_path / "second").exists() and not (tmp_path / "first").exists()


def test_a_sink_in_the_new_checkpoint(built: CheckpointBuilder, tmp_path: Path) -> None:
    for sink in ("new", "new/out"):
        for dry_run in (False, True):
            e = refused(
                ErrorKind.TARGET_NOT_EMPTY,
                savepoint.fork,
                built.root,
                tmp_path / "new",
                file_sink=tmp_path / sink,
                dry_run=dry_run,
            )
            assert "file sink" in str(e)
    assert not (tmp_path / "new").exists()
    report = savepoint.fork(built.root, tmp_path / "out/_checkpoint", file_sink=tmp_path / "out")
    assert report.file_sink == str(tmp_path / "out")


def test_the_command_says_it(
    built: CheckpointBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (built.root / layout.SINK_KEY).unlink()
    assert main(["savepoint", "create", str(built.root), str(tmp_path / "saved")]) == 0
    capsys.readouterr()
    assert main(["savepoint", "restore", str(tmp_path / "saved"), str(tmp_path / "one")]) == 0
    assert "warning: nothing says where the query writes to" in capsys.readouterr().err
    recorded(built, tmp_path / "out")
    assert main(["savepoint", "create", str(built.root), str(tmp_path / "knows")]) == 0
    assert main(["savepoint", "restore", str(tmp_path / "knows"), str(tmp_path / "two")]) == 2
    assert "FILE_SINK_UNKNOWN" in capsys.readouterr().err
    arguments = ["savepoint", "restore", str(tmp_path / "knows"), str(tmp_path / "two")]
    assert main([*arguments, "--file-sink", str(tmp_path / "new-out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file_sink"] == str(tmp_path / "new-out")
    assert open_storage(str(tmp_path / "new-out")).read("_spark_metadata/5") == b"v1"
