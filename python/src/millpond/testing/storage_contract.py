"""The contract of `millpond.storage.base.Storage`, as a suite that the tests of any implementation
inherit:

    class TestMine(StorageContract):
        @pytest.fixture
        def storage(self) -> Storage:
            return Mine(...)          # empty
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
)
from millpond.format.layout import STAGING_PREFIX
from millpond.storage.base import Storage

BAD_KEYS = ["", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/./b", "a\\b", "a\nb", "a\0b"]


class StorageContract:
    """Inherit it, and provide the fixture `storage`: an empty storage."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Callable[[bytes], str]:
        """Return a function that makes local files to store, each under its own name."""
        directory = tmp_path / "source files"
        directory.mkdir()
        made: list[Path] = []

        def make(data: bytes) -> str:
            path = directory / f"file-{len(made)}"
            path.write_bytes(data)
            made.append(path)
            return str(path)

        return make

    # ---- put and read

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
    def test_put_bytes_then_read(self, storage: Storage, data: bytes) -> None:
        storage.put_bytes("state/0/3/12.changelog", data)
        assert storage.read("state/0/3/12.changelog") == data
        assert storage.stat("state/0/3/12.changelog").size_bytes == len(data)

    @pytest.mark.parametrize("link", [False, True])
    @pytest.mark.parametrize("if_absent", [False, True])
    def test_put_file_then_read(
        self, storage: Storage, source: Callable[[bytes], str], link: bool, if_absent: bool
    ) -> None:
        path = source(b"one")
        storage.put_file("a/b/c", path, link=link, if_absent=if_absent)
        assert storage.read("a/b/c") == b"one"
        assert Path(path).read_bytes() == b"one", "the source stays"
        assert [info.key for info in storage.list("")] == ["a/b/c"], "nothing else is left behind"

    @pytest.mark.parametrize("link", [False, True])
    def test_put_replaces(
        self, storage: Storage, source: Callable[[bytes], str], link: bool
    ) -> None:
        storage.put_bytes("a/b", b"first")
        storage.put_file("a/b", source(b"second, longer"), link=link)
        assert storage.read("a/b") == b"second, longer"
        storage.put_bytes("a/b", b"3")
        assert storage.read("a/b") == b"3"
        assert [info.key for info in storage.list("")] == ["a/b"]

    @pytest.mark.parametrize("link", [False, True])
    def test_put_of_one_file_repeated(
        self, storage: Storage, source: Callable[[bytes], str], link: bool
    ) -> None:
        path = source(b"same")
        for _ in range(3):
            storage.put_file("a/b", path, link=link)
        assert [(i.key, i.size_bytes) for i in storage.list("")] == [("a/b", 4)]

    def test_replacing_an_object_does_not_touch_the_file_it_came_from(
        self, storage: Storage, source: Callable[[bytes], str]
    ) -> None:
        path = source(b"mine")
        storage.put_file("a", path, link=True)
        storage.put_bytes("a", b"other")
        assert Path(path).read_bytes() == b"mine"

    @pytest.mark.parametrize("link", [False, True])
    def test_put_if_absent_refuses_what_exists(
        self, storage: Storage, source: Callable[[bytes], str], link: bool
    ) -> None:
        storage.put_bytes("k/x", b"first", if_absent=True)
        attempts: list[Callable[[], None]] = [
            lambda: storage.put_bytes("k/x", b"second", if_absent=True),
            lambda: storage.put_file("k/x", source(b"second"), if_absent=True, link=link),
        ]
        for attempt in attempts:
            with pytest.raises(ConflictError) as caught:
                attempt()
            assert caught.value.kind is ErrorKind.OBJECT_EXISTS
        assert storage.read("k/x") == b"first"
        assert [info.key for info in storage.list("")] == ["k/x"]

    def test_put_if_absent_lets_one_of_many_win(self, storage: Storage) -> None:
        barrier = threading.Barrier(8)
        won: list[int] = []
        lost: list[int] = []

        def run(number: int) -> None:
            barrier.wait()
            try:
                storage.put_bytes("k/x", b"%d" % number, if_absent=True)
                won.append(number)
            except ConflictError:
                lost.append(number)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1 and len(lost) == 7
        assert storage.read("k/x") == b"%d" % won[0]

    def test_readers_never_see_a_part(self, storage: Storage) -> None:
        bodies = [bytes([i]) * 200_000 for i in range(4)]
        storage.put_bytes("k", bodies[0])
        stop = threading.Event()
        seen: list[bytes | MillpondError] = []

        def read() -> None:
            while not stop.is_set():
                try:
                    seen.append(storage.read("k"))
                except NotFoundError:  # some storages delete the old object before
                    continue
                except MillpondError as e:
                    seen.append(e)

        thread = threading.Thread(target=read)
        thread.start()
        for i in range(40):
            storage.put_bytes("k", bodies[i % 4])
        stop.set()
        thread.join()
        wrong = [data for data in seen if data not in bodies]
        assert not wrong, repr(wrong[0])[:1000]
        assert seen

    def test_put_file_without_a_file(self, storage: Storage, tmp_path: Path) -> None:
        for path in (tmp_path / "nothing", tmp_path):
            with pytest.raises(InvalidInputError) as caught:
                storage.put_file("a", str(path))
            assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
        assert list(storage.list("")) == []

    # ---- ranges

    def test_read_range(self, storage: Storage) -> None:
        storage.put_bytes("k", b"0123456789")
        assert storage.read_range("k", 0, 4) == b"0123"
        assert storage.read_range("k", 3, 4) == b"3456"
        assert storage.read_range("k", 8, 10) == b"89", "ends with the object"
        assert storage.read_range("k", 10, 1) == b"" and storage.read_range("k", 50, 1) == b""
        assert storage.read_range("k", 2, 0) == b""
        for start, length in ((-1, 2), (2, -1)):
            with pytest.raises(InvalidInputError):
                storage.read_range("k", start, length)

    # ---- fetching

    @pytest.mark.parametrize("link", [False, True])
    def test_get_to_file(self, storage: Storage, tmp_path: Path, link: bool) -> None:
        data = bytes(range(256)) * 9000
        storage.put_bytes("a/b.sst", data)
        target = tmp_path / "local"
        storage.get_to_file("a/b.sst", str(target), link=link)
        assert target.read_bytes() == data
        storage.put_bytes("a/b.sst", b"new")
        storage.get_to_file("a/b.sst", str(target), link=link)
        assert target.read_bytes() == b"new", "replaces what is there"
        storage.delete(["a/b.sst"])
        assert target.read_bytes() == b"new", "outlives the object"
        assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["local"]

    @pytest.mark.parametrize("link", [False, True])
    def test_get_to_file_of_nothing(self, storage: Storage, tmp_path: Path, link: bool) -> None:
        with pytest.raises(NotFoundError):
            storage.get_to_file("a/b", str(tmp_path / "local"), link=link)
        assert not (tmp_path / "local").exists()

    def test_local_path(self, storage: Storage) -> None:
        storage.put_bytes("a/b", b"data")
        path = storage.local_path("a/b")
        if path is not None:
            assert Path(path).is_absolute() and Path(path).read_bytes() == b"data"

    # ---- what is not there

    def test_absent_objects(self, storage: Storage) -> None:
        storage.put_bytes("a/b/c", b"x")
        for key in ("nothing", "a/b", "a", "a/b/c/d", "a/nothing/c"):
            for call in (storage.read, storage.stat, lambda k: storage.read_range(k, 0, 1)):
                with pytest.raises(NotFoundError) as caught:
                    call(key)
                assert caught.value.kind is ErrorKind.OBJECT_NOT_FOUND
                assert key in str(caught.value)

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys(
        self, storage: Storage, source: Callable[[bytes], str], tmp_path: Path, key: str
    ) -> None:
        calls: list[Callable[[], object]] = [
            lambda: storage.put_bytes(key, b"x"),
            lambda: storage.put_file(key, source(b"x")),
            lambda: storage.read(key),
            lambda: storage.read_range(key, 0, 1),
            lambda: storage.get_to_file(key, str(tmp_path / "local")),
            lambda: storage.stat(key),
            lambda: storage.delete([key]),
            lambda: storage.local_path(key),
            lambda: storage.copy_from(storage, "a", key),
        ]
        for call in calls:
            with pytest.raises(InvalidInputError) as caught:
                call()
            assert caught.value.kind is ErrorKind.INVALID_ARGUMENT

    # ---- copying

    def test_copy_from(self, storage: Storage) -> None:
        """A storage need not copy by itself. If it does, the copy is the same object."""
        data = bytes(range(256)) * 5000
        storage.put_bytes("a/b", data)
        storage.put_bytes("c/d", b"other")
        copied = storage.copy_from(storage, "a/b", "c/d")
        if copied is None:
            assert storage.read("c/d") == b"other"
            return
        assert (copied.size_bytes, copied.crc32) == (len(data), zlib.crc32(data))
        assert storage.read("c/d") == storage.read("a/b") == data
        storage.delete(["a/b"])
        assert storage.read("c/d") == data, "outlives what it was made of"
        again = storage.copy_from(storage, "c/d", "e")
        assert again == copied, "what is known of an object is known of its copy"
        with pytest.raises(NotFoundError) as caught:
            storage.copy_from(storage, "a/b", "f")
        assert caught.value.kind is ErrorKind.OBJECT_NOT_FOUND
        assert [info.key for info in storage.list("")] == ["c/d", "e"]

    # ---- listing

    def test_list(self, storage: Storage) -> None:
        keys = ["a/b", "a/b2/c", "a/b2/sst/d", "a-z", "a/.staging-1", "b", "ä/ö ü%20"]
        for i, key in enumerate(keys):
            storage.put_bytes(key, b"x" * i)
        assert [(info.key, info.size_bytes) for info in storage.list("")] == sorted(
            (k, i) for i, k in enumerate(keys)
        )
        assert [info.key for info in storage.list("a/")] == [
            "a/.staging-1",
            "a/b",
            "a/b2/c",
            "a/b2/sst/d",
        ]
        assert [info.key for info in storage.list("a/b")] == ["a/b", "a/b2/c", "a/b2/sst/d"], (
            "a prefix is a prefix"
        )
        assert [info.key for info in storage.list("a/b2/")] == ["a/b2/c", "a/b2/sst/d"]
        assert list(storage.list("nothing/")) == [] and list(storage.list("a/b/")) == []
        with pytest.raises(InvalidInputError):
            list(storage.list("../"))

    def test_list_of_an_empty_storage(self, storage: Storage) -> None:
        assert list(storage.list("")) == [] and list(storage.list("state/0/")) == []

    def test_times(self, storage: Storage) -> None:
        before = time.time_ns() // 1_000_000
        storage.put_bytes("k", b"x")
        info = storage.stat("k")
        assert before - 60_000 <= info.modified_ms <= time.time_ns() // 1_000_000 + 60_000
        assert list(storage.list("")) == [info]

    # ---- deleting

    def test_delete(self, storage: Storage) -> None:
        for key in ("a/b", "a/c", "d"):
            storage.put_bytes(key, b"x")
        storage.delete(["a/b", "nothing", "a/nothing", "d", "d/e"])
        assert [info.key for info in storage.list("")] == ["a/c"]
        storage.delete([])
        storage.delete(["a/c"])
        assert list(storage.list("")) == []
        storage.put_bytes("a/b", b"again")
        assert storage.read("a/b") == b"again"

    def test_nothing_staged_is_left(self, storage: Storage, source: Callable[[bytes], str]) -> None:
        storage.put_file("s/x", source(b"1"))
        storage.put_file("s/x", source(b"2"), link=True)
        storage.put_bytes("s/x", b"3")
        assert not [info.key for info in storage.list("") if STAGING_PREFIX in info.key]
