"""A Spark checkpoint in two places, and how Millpond finds the second one again."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import ErrorKind, FormatError, InvalidInputError
from millpond.format import layout
from millpond.model.ids import StoreId
from millpond.storage import (
    LocalStorage,
    MemoryStorage,
    ObjectInfo,
    Storage,
    StorageSettings,
    open_checkpoint,
)
from millpond.storage.paging import list_by_pages
from millpond.storage.place import read_place, settle_place
from millpond.storage.split import SplitStorage
from millpond.testing.storage_contract import StorageContract
from tests.refusals import refused

SPARKS = [
    "metadata",
    "offsets/0",
    "commits/0",
    "state/0/_metadata/metadata",
    "state/0/_metadata/v2/0",
    layout.STORAGE_KEY,
    f"{layout.RUNNING_PREFIX}run.json",
    f"{layout.HISTORY_PREFIX}file",
]
OURS = [
    layout.FORMAT_KEY,
    "millpond/gc/0.json",
    "millpond/pins/a.json",
    "state/0/3/1.changelog",
    "state/0/3/left/sst/x.sst",
]


class TestSplitStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return SplitStorage(MemoryStorage(), MemoryStorage())


def test_every_key_has_one_place() -> None:
    spark, state = MemoryStorage(), MemoryStorage()
    split = SplitStorage(spark, state)
    for key in SPARKS + OURS:
        split.put_bytes(key, b"x")
        (spark if key in OURS else state).put_bytes(
            key, b"what lies in the wrong place is not seen"
        )
    assert [info.key for info in split.list("")] == sorted(SPARKS + OURS)
    assert all(split.read(key) == b"x" and split.stat(key).size_bytes == 1 for key in SPARKS + OURS)
    prefixes = [
        "",
        "s",
        "state/",
        "state/0/",
        "state/0/_metadata/",
        "state/0/3",
        "state/0/3/",
        "millpond/",
        "millpond/gc/",
    ]
    for prefix in [*prefixes, "offsets/", "m", "millpond/s", "state/0/_metadata/v2/"]:
        expected = sorted(key for key in SPARKS + OURS if key.startswith(prefix))
        assert [info.key for info in split.list(prefix)] == expected, prefix
        assert sorted(info.key for info in list_by_pages(split, prefix)) == expected, prefix
    split.delete(SPARKS + OURS)
    assert list(split.list("")) == []


def test_a_store_s_directory_is_where_its_files_are(tmp_path: Path) -> None:
    split = SplitStorage(LocalStorage(str(tmp_path / "ckpt")), MemoryStorage())
    assert split.local_path(layout.store_dir(StoreId(0, 3))) is None
    assert split.local_path(layout.store_dir(StoreId(0, 3, "left"))) is None
    assert (
        split.local_path("state/0/_metadata") is not None
        and split.local_path("offsets/0") is not None
    )


def checkpoint(path: Path) -> LocalStorage:
    storage = LocalStorage(str(path))
    storage.put_bytes("metadata", b'{"id":"6a4c1a3e"}')
    return storage


def test_the_place_is_written_once_and_rules(tmp_path: Path) -> None:
    spark = checkpoint(tmp_path / "ckpt")
    assert read_place(spark) is None
    for uri in (f"file:{tmp_path}/state", f"file://{tmp_path}/state/"):
        assert settle_place(spark, uri, "x") == f"file:{tmp_path}/state/6a4c1a3e"
    assert settle_place(spark, None, "x") == f"file:{tmp_path}/state/6a4c1a3e"
    with pytest.raises(InvalidInputError) as caught:
        settle_place(spark, f"file:{tmp_path}/elsewhere", "x")
    assert caught.value.kind is ErrorKind.STORAGE_MOVED
    spark.put_bytes(layout.STORAGE_KEY, b"nonsense")
    with pytest.raises(FormatError):
        settle_place(spark, None, "x")


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("s3://bucket/states", "s3a://bucket/states/"),
        ("s3a://bucket", "s3://bucket"),
        ("hdfs://nn/states", "hdfs://nn:8020/states"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfs://c@a.dfs.core.windows.net/x"),
        ("DIR/there", "file:DIR/link"),
        ("DIR/link", "DIR/there"),
        ("file:DIR/link/states", "DIR/there/states"),
    ],
)
def test_another_name_of_the_place_is_no_other_place(
    tmp_path: Path, first: str, later: str
) -> None:
    """Two sessions may write it in two ways. The second one was refused."""
    spark = checkpoint(tmp_path / "ckpt")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    first, later = (uri.replace("DIR", str(tmp_path)) for uri in (first, later))
    place = settle_place(spark, first, "x")
    assert place == f"{first}/6a4c1a3e"
    assert settle_place(spark, later, "x") == place
    for other in ("s3://bucket/other", f"{tmp_path}/there/other"):
        refused(ErrorKind.STORAGE_MOVED, settle_place, spark, other, "x")


def test_a_place_that_is_none_is_not_written_down(tmp_path: Path) -> None:
    spark = checkpoint(tmp_path / "ckpt")
    for uri in ("", "relative/path"):
        refused(ErrorKind.INVALID_ARGUMENT, settle_place, spark, uri, "x")
    assert read_place(spark) is None


def test_a_checkpoint_with_its_state_in_itself_stays_so(tmp_path: Path) -> None:
    spark = checkpoint(tmp_path / "ckpt")
    spark.put_bytes(layout.FORMAT_KEY, b"{}")
    with pytest.raises(InvalidInputError, match="in itself") as caught:
        settle_place(spark, "s3://bucket/x", "x")
    assert caught.value.kind is ErrorKind.STORAGE_MOVED
    assert settle_place(spark, None, "x") is None


def test_a_checkpoint_that_executors_cannot_see() -> None:
    with pytest.raises(InvalidInputError, match="metadata") as caught:
        settle_place(MemoryStorage(), "s3://bucket/x", "file:/nowhere")
    assert caught.value.kind is ErrorKind.NOT_A_CHECKPOINT


def test_two_executors_at_once(tmp_path: Path) -> None:
    spark = checkpoint(tmp_path / "ckpt")

    class Slow(SplitStorage):
        """The other executor writes between this one's look and write."""

        def stat(self, key: str) -> ObjectInfo:
            settle_place(spark, f"file:{tmp_path}/theirs", "x")
            return super().stat(key)

    with pytest.raises(InvalidInputError) as caught:
        settle_place(Slow(spark, spark), f"file:{tmp_path}/mine", "x")
    assert caught.value.kind is ErrorKind.STORAGE_MOVED
    assert read_place(spark) == f"file:{tmp_path}/theirs/6a4c1a3e"


def test_open_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt")
    uri, settings = f"file:{tmp_path}/ckpt", StorageSettings(uri=f"file:{tmp_path}/state")
    assert isinstance(open_checkpoint(uri, settings), LocalStorage), "a mere reader decides nothing"
    written = open_checkpoint(uri, settings, writable=True)
    written.put_bytes("state/0/0/1.changelog", b"x")
    assert open_checkpoint(uri).read("state/0/0/1.changelog") == b"x"
    assert (tmp_path / "state/6a4c1a3e/state/0/0/1.changelog").exists()
