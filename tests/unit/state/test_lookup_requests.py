"""How many requests a look-up on S3 takes; and that a request which is saved costs no right answer,
and hides no damage.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from integration.depth import quick_first
from millpond import savepoint
from millpond.cli.main import main
from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader
from millpond.format.format_file import decode_format, encode_format
from millpond.model.ids import StoreId, VersionId
from millpond.model.key_groups import KeyGroups
from millpond.rows.encode import encode_rows
from millpond.storage.place import place_record
from tests.checkpoints import CheckpointBuilder, version_id
from tests.join_checkpoints import ROWS, JoinBuilder
from tests.row_checkpoints import VALUE, HashedBuilder, RowsBuilder
from tests.s3_server import S3Server, s3_server

_SNAPSHOTS = (2, 4)
_BATCHES = 6  # so two changelogs are above the newest snapshot, which has two SSTs


class Builder(HashedBuilder):
    """Headers name all ids down to the newest snapshot, as the shim writes them."""

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        base = max((v for v in _SNAPSHOTS if v < version), default=0)
        lineage = [version_id(store, v) if v else "" for v in range(base, version)]
        made = super().header(store, version)
        return replace(made, lineage_base=base, lineage=tuple(lineage))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables by which commands reach the server."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def built(root: Path, spark_format: int = 2, partitions: int = 4) -> CheckpointBuilder:
    made = Builder(root, spark_format=spark_format, partitions=partitions)
    return made.build(_BATCHES, _SNAPSHOTS)


class OnS3:
    """A Spark checkpoint whose state is on S3, and its Spark logs in a directory."""

    def __init__(self, server: S3Server, made: CheckpointBuilder) -> None:
        self.made, self.bucket, self.client = made, server.bucket(), server.client()
        for info in list(made.storage.list("")):
            if not spark_names.is_sparks(info.key):
                self.put(info.key, made.storage.read(info.key))
                made.storage.delete([info.key])
        uri = f"s3://{self.bucket}/states/q"
        made.storage.put_bytes(layout.STORAGE_KEY, place_record(uri))

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"states/q/{key}", Body=data)

    def read(self, key: str) -> bytes:
        got = self.client.get_object(Bucket=self.bucket, Key=f"states/q/{key}")
        data: bytes = got["Body"].read()
        return data

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"states/q/{key}")


def keys_of(made: CheckpointBuilder, partition: int, batches: int = _BATCHES) -> dict[int, str]:
    """Return the keys of a partition with their values."""
    assert isinstance(made, HashedBuilder)
    store = StoreId(0, partition)
    return {made._number(store, v): f"of {v}" for v in range(1, batches + 1)}


def looked_up(server: S3Server, path: Any, k: int, **chosen: Any) -> tuple[Any, Counter[str]]:
    """Return the answer of a new reader, and its requests: LIST, and GET of a kind of file."""
    server.log.clear()
    with millpond.lookup(path, **chosen) as state:
        rows = state.get({"k": k})
    return [row["value"]["n"] for row in rows], _counts(server)


def _counts(server: S3Server) -> Counter[str]:
    return Counter(
        request.operation if request.operation != "GET" else request.path.rpartition(".")[2]
        for request in server.log
    )


@pytest.mark.parametrize(
    ("partitions", "spark_format"), quick_first([(2, 1), (16, 2), (2, 2), (16, 1)], 2)
)
def test_seven_requests(
    server: S3Server, tmp_path: Path, partitions: int, spark_format: int
) -> None:
    """One LIST of Millpond's own files, a manifest, the changelogs above it, one SST, and one LIST
    that tells of erasures meanwhile: however many partitions and other SSTs there are.
    """
    made = built(tmp_path / "query", spark_format, partitions)
    on_s3 = OnS3(server, made)
    for partition in (0, partitions - 1):
        for k, value in keys_of(made, partition).items():
            rows, counts = looked_up(server, made.root, k)
            assert rows == [value]
            ssts = counts.pop("sst", 0)
            assert counts == {"LIST": 2, "manifest": 1, "changelog": 2}
            assert ssts <= 2 and sum(counts.values()) + ssts <= 7
    # The state of an earlier batch: that of a snapshot needs no changelog above it but its own.
    k, value = next(iter(keys_of(made, 0, 3).items()))
    rows, counts = looked_up(server, made.root, k, batch=2)
    assert rows == [value]
    assert counts == {"LIST": 2, "manifest": 1, "changelog": 1, "sst": 1}
    assert on_s3.read(layout.FORMAT_KEY)


class Joined(Builder, JoinBuilder):
    """A side of a join."""


def test_a_join_by_the_stored_name(server: S3Server, tmp_path: Path) -> None:
    """It reads no rows for the names that the key's columns have in the inputs."""
    made = Joined(tmp_path / "query", partitions=4)
    made.build(_BATCHES, _SNAPSHOTS)
    OnS3(server, made)
    for partition in (0, 3):
        k = made._numbers(StoreId(0, partition, ROWS))[1]
        for key, stores in (({"field0": k, "index": 0}, 1), ({"field0": k}, 2)):
            server.log.clear()
            with millpond.lookup(made.root, store=ROWS) as state:
                assert [row["value"]["id"] for row in state.get(key)] == [k]
            counts = _counts(server)
            assert counts.pop("sst") <= 2 * stores
            expected = {"LIST": 1 + stores, "manifest": stores, "changelog": 2 * stores}
            assert counts == expected


class Large(RowsBuilder):
    """Values of one MiB each."""

    def value(self, store: StoreId, version: int) -> bytes:
        (row,) = encode_rows(pa.array([{"n": str(version % 10) * 1024**2}]), VALUE).to_pylist()
        return b"\0" + bytes(row)


def test_the_first_rows_need_the_first_sst(server: S3Server, tmp_path: Path) -> None:
    """All SSTs of the first partition were fetched."""
    made = Large(tmp_path / "query", partitions=2, groups=KeyGroups(16, 2))
    made.build(62, snapshots=(30, 45, 60))
    every = millpond.read_state(made.root)
    OnS3(server, made)
    for limit, ssts in ((1, 1), (None, 6)):
        server.log.clear()
        assert millpond.read_state(made.root, limit=limit).equals(every.slice(0, limit))
        counts = _counts(server)
        assert counts["sst"] == ssts
    assert millpond.read_state(made.root, limit=50).equals(every.slice(0, 50))


class Unknowing(HashedBuilder):
    """The writers of its changelogs do not know any snapshot yet."""

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        lineage = [version_id(store, v) if v else "" for v in range(version)]
        return replace(super().header(store, version), lineage_base=0, lineage=tuple(lineage))


@pytest.mark.parametrize("spark_format", quick_first([1, 2]))
def test_of_many_changelogs_a_listing_saves_most(
    server: S3Server, tmp_path: Path, spark_format: int
) -> None:
    made = Unknowing(tmp_path / "query", spark_format=spark_format).build(8, (2, 7))
    OnS3(server, made)
    for k, value in keys_of(made, 1, 8).items():
        rows, counts = looked_up(server, made.root, k)
        assert rows == [value]
        ssts = counts.pop("sst", 0)
        assert counts == {"LIST": 3, "manifest": 1, "changelog": 1} and ssts <= 2
    for k, value in keys_of(made, 1, 7).items():
        rows, counts = looked_up(server, made.root, k, batch=6)
        assert rows == [value]
        assert counts["changelog"] == 1
    for k, value in keys_of(made, 1, 5).items():  # all that are above the first snapshot
        rows, counts = looked_up(server, made.root, k, batch=4)
        assert rows == [value]
        assert counts["changelog"] == 3


def test_only_ssts_that_can_hold_the_key_are_fetched(server: S3Server, tmp_path: Path) -> None:
    made = built(tmp_path / "query", partitions=2)
    OnS3(server, made)
    newest = made.manifests[StoreId(0, 0)][-1]
    assert len(newest.ssts) == 2
    for version in range(1, 5):
        physical = made.key(StoreId(0, 0), version).hex()
        k = Builder._number(made, StoreId(0, 0), version)  # type: ignore[arg-type]
        _, counts = looked_up(server, made.root, k)
        ranges = [sst.smallest_hex <= physical <= sst.largest_hex for sst in newest.ssts]
        assert counts["sst"] == sum(ranges)
    # A key that is in no range takes none.
    absent = next(
        k
        for k in range(200)
        if looked_up(server, made.root, k)[1]["sst"] == 0 and k not in keys_of(made, 0)
    )
    assert looked_up(server, made.root, absent)[0] == []


@pytest.mark.parametrize("spark_format", quick_first([2, 1]))
def test_one_reader_answers_for_every_key(
    server: S3Server, tmp_path: Path, spark_format: int
) -> None:
    """It fetches each file once, whatever it is asked for and in which order."""
    made = built(tmp_path / "query", spark_format)
    OnS3(server, made)
    with millpond.lookup(made.root) as state:
        server.log.clear()
        for k in range(200):
            expected = {k: v for p in range(4) for k, v in keys_of(made, p).items()}.get(k)
            assert [row["value"]["n"] for row in state.get({"k": k})] == (
                [expected] if expected is not None else []
            )
        files = Counter(request.path for request in server.log if request.operation != "LIST")
        assert max(files.values()) == 1
        assert _counts(server)["LIST"] == 4  # one for each partition that was opened


def test_a_savepoint(server: S3Server, tmp_path: Path) -> None:
    made = built(tmp_path / "query")
    for batch, changelogs in ((3, 0), (5, 2)):
        place = f"s3://{server.bucket()}/saved"
        savepoint.create(made.root, place, batch=batch)
        for k, value in keys_of(made, 1, batch + 1).items():
            rows, counts = looked_up(server, place, k)
            assert rows == [value]
            ssts = counts.pop("sst", 0)
            # storage.json is not there; savepoint.json, operator metadata and a schema are.
            assert counts == Counter({"json": 2, "manifest": 1, "changelog": changelogs}) + Counter(
                {key: n for key, n in counts.items() if key not in _OURS}
            )
            assert sum(counts.values()) == 5 + changelogs
            assert ssts <= 2


_OURS = ("json", "manifest", "changelog")


@pytest.mark.deep
def test_all_of_it_on_s3(server: S3Server, tmp_path: Path) -> None:
    made = built(tmp_path / "query")
    bucket, client = server.bucket(), server.client()
    for info in made.storage.list(""):
        client.put_object(Bucket=bucket, Key=f"q/{info.key}", Body=made.storage.read(info.key))
    for k, value in keys_of(made, 3).items():
        rows, counts = looked_up(server, f"s3://{bucket}/q", k)
        assert rows == [value]
        assert counts["LIST"] == 5 and counts["changelog"] == 2 and counts["manifest"] == 1
        assert sum(counts.values()) - counts["sst"] == 14


def test_the_command(server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It looks at the query once."""
    made = built(tmp_path / "query")
    OnS3(server, made)
    k, value = next(iter(keys_of(made, 0).items()))
    server.log.clear()
    assert main(["state", "get", str(made.root), "--key", f"k={k}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == {"n": value}
    assert len(server.log) <= 7


# ---- damage


def _refused(path: Path, k: int) -> MillpondError:
    with pytest.raises(MillpondError) as caught, millpond.lookup(path) as state:
        state.get({"k": k})
    return caught.value


def _file_of(on_s3: OnS3, suffix: str, partition: int = 0) -> list[str]:
    listed = on_s3.client.list_objects_v2(
        Bucket=on_s3.bucket, Prefix=f"states/q/state/0/{partition}/"
    )
    return [
        entry["Key"].removeprefix("states/q/")
        for entry in listed["Contents"]
        if entry["Key"].endswith(suffix)
    ]


@pytest.mark.parametrize("suffix", ["sst", "changelog"])
def test_damage_is_refused_where_it_is_read(server: S3Server, tmp_path: Path, suffix: str) -> None:
    made = built(tmp_path / "query")
    on_s3 = OnS3(server, made)
    for key in _file_of(on_s3, suffix):
        data = bytearray(on_s3.read(key))
        data[len(data) // 2] ^= 1
        on_s3.put(key, bytes(data))
    (k, _), (other, value) = (next(iter(keys_of(made, p, 1).items())) for p in (0, 1))
    kinds = {"sst": ErrorKind.SST_DAMAGED, "changelog": ErrorKind.CHANGELOG_DAMAGED}
    assert _refused(made.root, k).kind is kinds[suffix]
    assert looked_up(server, made.root, other)[0] == [value]


@pytest.mark.parametrize(
    ("damage", "suffix"),
    quick_first([("gone", "sst"), ("cut", "manifest"), ("gone", "manifest"), ("cut", "sst")], 2),
)
def test_an_older_snapshot_makes_up_for_a_lost_file(
    server: S3Server, tmp_path: Path, damage: str, suffix: str
) -> None:
    made = built(tmp_path / "query")
    on_s3 = OnS3(server, made)
    store = StoreId(0, 0)
    newest = made.manifests[store][-1]
    key = (
        layout.manifest_key(store, newest.version_id, 2)
        if suffix == "manifest"
        else next(
            layout.store_key(store, sst.key)
            for sst in newest.ssts
            if sst not in made.manifests[store][0].ssts
        )
    )
    if damage == "gone":
        on_s3.delete(key)
    else:
        on_s3.put(key, on_s3.read(key)[:-1])
    for k, value in keys_of(made, 0).items():
        assert looked_up(server, made.root, k)[0] == [value]


def test_a_lost_changelog_is_told_with_what_is_left(server: S3Server, tmp_path: Path) -> None:
    made = built(tmp_path / "query")
    on_s3 = OnS3(server, made)
    store = StoreId(0, 0)
    on_s3.delete(layout.changelog_key(store, VersionId(6, version_id(store, 6)), 2))
    refused = _refused(made.root, next(iter(keys_of(made, 0))))
    assert refused.kind is ErrorKind.CHANGELOG_MISSING
    assert "Batch 4 is the newest that is whole" in refused.hint


def test_a_reader_knows_the_options_that_it_was_opened_with(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens a store when a key of it is asked for, and looks at the query if that fails."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # nobody listens
    made = built(tmp_path / "query")
    on_s3 = OnS3(server, made)
    options = {"storage.s3.endpoint": server.endpoint, "storage.deadlineMs": 2000}
    whole, lost = (next(iter(keys_of(made, partition).items())) for partition in (0, 1))
    store = StoreId(0, 1)
    on_s3.delete(layout.changelog_key(store, VersionId(6, version_id(store, 6)), 2))
    with millpond.lookup(made.root, options=options) as state:
        assert [row["value"]["n"] for row in state.get({"k": whole[0]})] == [whole[1]]
        with pytest.raises(MillpondError) as caught:
            state.get({"k": lost[0]})
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING, caught.value
    assert "Batch 4 is the newest that is whole" in caught.value.hint


def test_what_a_look_at_the_whole_query_refuses(server: S3Server, tmp_path: Path) -> None:
    made = built(tmp_path / "query")
    on_s3 = OnS3(server, made)
    k, value = next(iter(keys_of(made, 0).items()))
    on_s3.put(layout.RESCALE_JOURNAL_KEY, b"{}")
    assert _refused(made.root, k).kind is ErrorKind.RESCALE_UNFINISHED
    on_s3.delete(layout.RESCALE_JOURNAL_KEY)
    format_file = on_s3.read(layout.FORMAT_KEY)
    marked = encode_format(decode_format(format_file), erasing=True)
    on_s3.put(layout.ERASE_JOURNAL_KEY, b"{}")
    on_s3.put(layout.FORMAT_KEY, marked)
    assert _refused(made.root, k).kind is ErrorKind.ERASE_UNFINISHED
    on_s3.put(layout.FORMAT_KEY, format_file)
    assert looked_up(server, made.root, k)[0] == [value]  # a journal alone: nothing is erased yet
    on_s3.delete(layout.ERASE_JOURNAL_KEY)
    # Without the last commit a look-up would answer with an older batch.
    offsets, commit = (
        made.storage.read(key) for key in (spark_names.offsets_key(5), spark_names.commits_key(5))
    )
    made.storage.put_bytes(spark_names.offsets_key(6), offsets)
    made.storage.delete([spark_names.commits_key(5)])
    assert _refused(made.root, k).kind is ErrorKind.FORMAT_DAMAGED
    made.storage.put_bytes(spark_names.commits_key(5), commit)
    assert looked_up(server, made.root, k)[0] == [value]
    with pytest.raises(MillpondError) as caught:
        millpond.lookup(made.root, batch=77)
    assert caught.value.kind is ErrorKind.BATCH_NOT_COMMITTED
    with pytest.raises(MillpondError) as caught:
        millpond.lookup(made.root, operator=9)
    assert caught.value.kind is ErrorKind.OPERATOR_UNKNOWN
    doubled = offsets.replace(b'partitions": "4"', b'partitions": "8"')
    assert doubled != offsets
    made.storage.put_bytes(spark_names.offsets_key(5), doubled)
    assert _refused(made.root, k).kind is ErrorKind.PARTITIONS_CHANGED


def test_a_key_that_is_erased_meanwhile(server: S3Server, tmp_path: Path) -> None:
    """An erasure announces itself before it changes a file."""
    made = built(tmp_path / "query")
    on_s3 = OnS3(server, made)
    (k, value), (other, _) = (next(iter(keys_of(made, p, 1).items())) for p in (0, 1))
    with millpond.lookup(made.root) as state:
        assert [row["value"]["n"] for row in state.get({"k": k})] == [value]
        on_s3.put("millpond/gc/0.erased-1.json", b"")
        with pytest.raises(MillpondError) as caught:
            state.get({"k": other})
        assert caught.value.kind is ErrorKind.ERASE_UNFINISHED
        server.log.clear()
        assert [row["value"]["n"] for row in state.get({"k": k})] == [value]
        assert not server.log  # its store is open
    rows, counts = looked_up(server, made.root, k)
    assert rows == [value]
    ssts = counts.pop("sst", 0)
    assert counts == {"LIST": 2, "manifest": 1, "changelog": 2, "json": 1} and ssts <= 2


@pytest.mark.deep
def test_a_store_of_other_partitions(server: S3Server, tmp_path: Path) -> None:
    """In Spark checkpoint format 1 nothing but the store's own files tells it."""
    made = built(tmp_path / "query", spark_format=1)
    OnS3(server, made)
    offsets = made.storage.read(spark_names.offsets_key(5))
    made.storage.put_bytes(
        spark_names.offsets_key(5), offsets.replace(b'partitions": "4"', b'partitions": "2"')
    )
    for k in keys_of(made, 0):
        assert _refused(made.root, k).kind is ErrorKind.PARTITIONS_CHANGED
