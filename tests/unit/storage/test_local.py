"""Storage on a file system: the contract, and what only a file system can do wrong."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.storage import LocalStorage, Storage, open_storage
from millpond.storage.local import translate, translate_restored
from millpond.testing.storage_contract import StorageContract


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(str(tmp_path / "the checkpoint % of äö"))


class TestLocalStorageWithoutFsync(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(str(tmp_path / "checkpoint"), fsync=False)


class TestLocalStorageWithoutLinks(StorageContract):
    """A file system that links only inside the storage's own directory.

    Staging works there. Sharing blocks with other directories does not.
    """

    @pytest.fixture
    def storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
        real = os.link
        root = str(tmp_path / "checkpoint")

        def link(source: str, target: str) -> None:
            if not (source.startswith(root) and target.startswith(root)):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            real(source, target)

        monkeypatch.setattr(os, "link", link)
        return LocalStorage(root)


@pytest.mark.parametrize(
    ("number", "kind", "cls"),
    [
        (errno.ENOSPC, ErrorKind.STORAGE_FULL, UnavailableError),
        (errno.EDQUOT, ErrorKind.STORAGE_FULL, UnavailableError),
        (errno.EACCES, ErrorKind.STORAGE_DENIED, UnavailableError),
        (errno.EPERM, ErrorKind.STORAGE_DENIED, UnavailableError),
        (errno.EROFS, ErrorKind.STORAGE_DENIED, UnavailableError),
        (errno.ENOENT, ErrorKind.OBJECT_NOT_FOUND, NotFoundError),
        (errno.ESTALE, ErrorKind.STORAGE_UNAVAILABLE, UnavailableError),
        (errno.EIO, ErrorKind.STORAGE_UNAVAILABLE, UnavailableError),
    ],
)
def test_errors_of_the_system(number: int, kind: ErrorKind, cls: type[MillpondError]) -> None:
    error = translate(OSError(number, os.strerror(number)), "storing a/b")
    assert type(error) is cls and error.kind is kind and error.hint
    assert "a/b" in str(error)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ErrorKind.LOCAL_DISK_FULL),
        (errno.EROFS, ErrorKind.STORAGE_DENIED),
        (errno.ENOENT, ErrorKind.LOCAL_FILES_LOST),
        (errno.EIO, ErrorKind.STORAGE_UNAVAILABLE),
    ],
)
def test_an_own_file_is_told_from_a_stored_object(number: int, kind: ErrorKind) -> None:
    """That a file of a scratch directory is gone was told as an object that is gone. Then a fork
    looked at the query again and again.
    """
    error = translate_restored(OSError(number, os.strerror(number)), "writing x", hint="Do it.")
    assert error.kind is kind and isinstance(error, UnavailableError)
    assert (error.hint == "Do it.") is (kind is ErrorKind.LOCAL_FILES_LOST)


def test_full_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_bytes("a/b", b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError) as caught:
        storage.put_bytes("a/b", b"new")
    monkeypatch.undo()
    assert caught.value.kind is ErrorKind.STORAGE_FULL
    assert storage.read("a/b") == b"old"
    assert [info.key for info in storage.list("")] == ["a/b"], "the staging file is gone"


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    storage = LocalStorage(str(tmp_path / "c"))
    storage.put_bytes("a", b"plain puts need no links")
    with pytest.raises(UnsupportedError) as caught:
        storage.put_bytes("b", b"x", if_absent=True)
    assert caught.value.kind is ErrorKind.STORAGE_UNSUPPORTED
    assert [info.key for info in storage.list("")] == ["a"]


def test_link_shares_the_blocks(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "c"))
    source = tmp_path / "x.sst"
    source.write_bytes(b"data")
    storage.put_file("sst/x", str(source), link=True)
    stored = storage.local_path("sst/x")
    assert stored is not None and os.path.samefile(stored, source)
    storage.get_to_file("sst/x", str(tmp_path / "back"), link=True)
    assert os.path.samefile(stored, tmp_path / "back")
    storage.put_file("sst/y", str(source))
    copied = storage.local_path("sst/y")
    assert copied is not None and not os.path.samefile(copied, source)


def test_everything_is_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is synced before its name, and its name before the return.

    Each new directory is synced in its parent.
    """
    calls: list[str] = []
    root = tmp_path / "c"
    real_fsync, real_replace, real_mkdir = os.fsync, os.replace, os.mkdir

    def name_of(path: str) -> str:
        name = os.path.relpath(path, tmp_path)
        return "staging" if ".staging-" in name else name

    def fsync(descriptor: int) -> None:
        calls.append("fsync " + name_of(os.readlink(f"/proc/self/fd/{descriptor}")))
        real_fsync(descriptor)

    def replace(source: str, target: str) -> None:
        calls.append(f"rename {name_of(source)} to {name_of(target)}")
        real_replace(source, target)

    def mkdir(path: str) -> None:
        calls.append(f"mkdir {name_of(path)}")
        real_mkdir(path)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "mkdir", mkdir)
    LocalStorage(str(root)).put_bytes("state/0", b"x")
    assert calls == [
        "mkdir c",
        "fsync .",
        "mkdir c/state",
        "fsync c",
        "fsync staging",
        "rename staging to c/state/0",
        "fsync c/state",
    ]


def test_all_bytes_are_in_the_file_when_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes in a buffer of this process are not on the disk yet."""
    synced: list[int] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            synced.append(found.st_size)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    storage = LocalStorage(str(tmp_path / "c"))
    for size in (1, 5_000, 1 << 20, (1 << 20) + 100):
        source = tmp_path / f"{size}.changelog"
        source.write_bytes(bytes(size))
        storage.put_file(f"state/{size}", str(source))
        storage.put_bytes(f"state/{size}", bytes(size))
        assert synced == [size, size]
        synced.clear()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_denied(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o500)
    with pytest.raises(UnavailableError) as caught:
        LocalStorage(str(tmp_path / "c")).put_bytes("a", b"x")
    assert caught.value.kind is ErrorKind.STORAGE_DENIED


def test_open_storage(tmp_path: Path) -> None:
    storage = open_storage(f"file:{tmp_path}/my check%20point")
    storage.put_bytes("a", b"x")
    assert (tmp_path / "my check%20point" / "a").read_bytes() == b"x", (
        "Hadoop does not decode the path, so Millpond does not either"
    )
    with pytest.raises(ConflictError):
        open_storage(f"file://{tmp_path}/my check%20point").put_bytes("a", b"y", if_absent=True)
    with pytest.raises(UnsupportedError) as caught:
        open_storage("file://elsewhere/x")
    assert caught.value.kind is ErrorKind.STORAGE_UNSUPPORTED
    for root in ("", "relative/path", "file:relative"):
        with pytest.raises(InvalidInputError):
            open_storage(root)
