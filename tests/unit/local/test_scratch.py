"""Temporary directories.

One is gone at the end of its block. The next block removes those of killed processes.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from millpond.errors import ErrorKind, UnavailableError
from millpond.local import scratch
from millpond.local.scratch import scratch_directory


def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child does not report
        with scratch_directory("read") as directory:
            Path(directory, "file").write_text("x")
            os._exit(0)
    os.waitpid(pid, 0)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("millpond-scratch-read-")
    (tmp_path / "millpond-scratch-file").write_text("no directory of ours")
    (tmp_path / "millpond-other").mkdir()
    with scratch_directory("read") as one:
        assert not left.exists()
        scratch._remove_abandoned_once.cache_clear()  # as in another process
        with scratch_directory("read") as two:
            assert one != two and os.path.isdir(one), "the first directory stays: its process lives"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "millpond-other",
        "millpond-scratch-file",
    ]


def test_links_and_what_is_another_users_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may write to TMPDIR. A directory with the right name may be another user's."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (tmp_path / "millpond-scratch-link").symlink_to(precious)
    scratch.remove_abandoned(str(tmp_path), "millpond-scratch-")
    assert (precious / "file").exists() and (tmp_path / "millpond-scratch-link").is_symlink()
    theirs = tmp_path / "millpond-scratch-theirs"
    (theirs / "sub").mkdir(parents=True)
    user = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: user + 1)
        scratch.remove_abandoned(str(tmp_path), "millpond-scratch-")
    assert theirs.is_dir()
    scratch.remove_abandoned(str(tmp_path), "millpond-scratch-")
    assert not theirs.exists()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ErrorKind.LOCAL_DISK_FULL),
        (errno.EROFS, ErrorKind.STORAGE_DENIED),
        (errno.ENOENT, ErrorKind.LOCAL_FILES_LOST),
        (errno.EIO, ErrorKind.STORAGE_UNAVAILABLE),
    ],
)
def test_no_place_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: ErrorKind
) -> None:
    """As in a container whose disk may only be read. It was an INTERNAL error, to be reported."""

    def refused(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(UnavailableError) as told, scratch_directory("read"):
        pass
    assert told.value.kind is kind and os.strerror(number) in told.value.message
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(UnavailableError) as told, scratch_directory("read"):
        pass
    assert "No usable temporary directory" in told.value.message
    assert "TMPDIR" in told.value.hint
