"""Spark's logs, as Millpond reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.model.ids import StoreId
from millpond.spark.log_entries import parse_commit, parse_offsets
from millpond.spark.metadata import read_operator_info, read_spark_metadata
from millpond.storage import MemoryStorage

CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.millpond.MillpondStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "8",
}


def offsets_text(version: str = "v1", conf: dict[str, str] | None = None, **more: Any) -> str:
    metadata = {
        "batchWatermarkMs": 5,
        "batchTimestampMs": 1700000000000,
        "conf": CONF if conf is None else conf,
        **more,
    }
    return f'{version}\n{json.dumps(metadata)}\n{{"logOffset":0}}\n-'


def operator_text(
    version: str, name: str, stores: list[dict[str, Any]], properties: dict[str, Any] | None = None
) -> str:
    body: dict[str, Any] = {
        "operatorInfo": {"operatorId": 0, "operatorName": name},
        "stateStoreInfo": stores,
    }
    if properties is not None:
        body["operatorPropertiesJson"] = json.dumps(properties)
    return f"{version}\n{json.dumps(body)}"


def store_info(name: str = "default", partitions: int = 8, **more: Any) -> dict[str, Any]:
    return {"storeName": name, "numColsPrefixKey": 0, "numPartitions": partitions, **more}


def filled(files: dict[str, str]) -> MemoryStorage:
    storage = MemoryStorage()
    for key, text in files.items():
        storage.put_bytes(key, text.encode())
    return storage


def test_nothing_there_is_no_error() -> None:
    metadata = read_spark_metadata(MemoryStorage())
    assert (
        metadata.query_id is None
        and metadata.partitions is None
        and metadata.provider_class is None
    )
    assert metadata.last_batch is None and metadata.last_committed_batch is None
    assert (
        metadata.checkpoint_format is None
        and metadata.operators == {}
        and metadata.partitions_at(3) is None
    )


def test_a_checkpoint_of_format_1() -> None:
    storage = filled(
        {
            "metadata": '{"id":"6f0d1b8e-0000-4000-8000-000000000000"}',
            "offsets/0": offsets_text(),
            "offsets/9": offsets_text(),
            "offsets/10": offsets_text(conf={**CONF, "spark.sql.shuffle.partitions": "4"}),
            "offsets/.10.crc": "crc",
            "offsets/.11.0d3c.tmp": "half",
            "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
            "commits/9": 'v1\n{"nextBatchWatermarkMs":7}',
            "commits/.9.crc": "crc",
            "state/0/_metadata/metadata": operator_text("v1", "stateStoreSave", [store_info()]),
            "state/0/_metadata/.metadata.crc": "crc",
            "state/1/_metadata/metadata": operator_text(
                "v1",
                "symmetricHashJoin",
                [store_info("left-keyToNumValues"), store_info("right-keyToNumValues")],
            ),
            "state/0/3/1.changelog": "",
        }
    )
    metadata = read_spark_metadata(storage)
    assert metadata.query_id == "6f0d1b8e-0000-4000-8000-000000000000"
    assert metadata.offset_batches == (0, 9, 10) and metadata.commit_batches == (0, 9)
    assert (metadata.last_batch, metadata.last_committed_batch) == (10, 9)
    assert metadata.partitions == 4, "the newest entry counts"
    assert (
        metadata.partitions_at(10) == 8
        and metadata.partitions_at(11) == 4
        and metadata.partitions_at(99) == 4
    )
    assert metadata.provider_class == CONF["spark.sql.streaming.stateStore.providerClass"]
    assert metadata.checkpoint_format == 1
    assert (
        metadata.offsets[9].sources == ('{"logOffset":0}', "-")
        and metadata.offsets[9].watermark_ms == 5
    )
    assert metadata.commits[9].watermark_ms == 7
    assert metadata.operators[0].name == "stateStoreSave" and metadata.operators[0].stores == (
        "default",
    )
    assert metadata.operators[1].stores == ("left-keyToNumValues", "right-keyToNumValues")


def test_only_the_newest_entries_are_read_when_asked() -> None:
    storage = filled(
        {f"offsets/{batch}": offsets_text() for batch in range(5)} | {"offsets/1": "rubbish"}
    )
    metadata = read_spark_metadata(storage, batches=(3,), operators=())
    assert sorted(metadata.offsets) == [3, 4] and metadata.offset_batches == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "ids", "has_ids"),
    [
        ('v1\n{"nextBatchWatermarkMs":0}', {}, False),
        (
            'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["a"],["b"]]}}',
            {0: (("a",), ("b",))},
            True,
        ),
        ('v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{}}', {}, True),
        ('v3\n{"nextBatchWatermarkMs":7,"sinkMetadataMap":{}}', {}, False),
        (
            'v3\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"1":[["a","b"]]}}',
            {1: (("a", "b"),)},
            True,
        ),
        ("v1\n", {}, False),
    ],
)
def test_commit_log_versions(text: str, ids: Any, has_ids: bool) -> None:
    commit = parse_commit(text, 4)
    assert commit.state_ids == ids and commit.has_state_ids is has_ids and commit.batch == 4


def test_offset_log_v2() -> None:
    text = offsets_text("v2", sourceMetadataInfo={"0": {}}, controlBatchInfo=None)
    assert parse_offsets(text, 1).partitions == 8


@pytest.mark.parametrize(
    ("written", "partitions"),
    [("8", 8), (" 8", 8), ("8\t", 8), ("", None), (" ", None), ("x", None), ("\u00b2", None)],
)
def test_pinned_partitions_are_as_the_user_wrote_them(written: str, partitions: int | None) -> None:
    text = offsets_text(conf={**CONF, "spark.sql.shuffle.partitions": written})
    assert parse_offsets(text, 1).partitions == partitions


def test_an_offset_entry_without_pinned_partitions() -> None:
    assert parse_offsets(offsets_text(conf={}), 1).partitions is None


def test_operator_metadata_v2_the_newest_run_counts() -> None:
    variables = [{"stateName": "c", "stateVariableType": "ValueState", "ttlEnabled": False}]
    properties = {"timeMode": "NoTime", "outputMode": "Update", "stateVariables": variables}
    path = "file:/c/state/0/_stateSchema/default/0_x"
    old = operator_text("v2", "transformWithStateExec", [store_info(partitions=2)], {})
    new = operator_text(
        "v2", "transformWithStateExec", [store_info(stateSchemaFilePaths=[path])], properties
    )
    storage = filled(
        {
            "state/0/_metadata/v2/2": old,
            "state/0/_metadata/v2/10": new,
            "state/0/_metadata/v2/.10.crc": "",
        }
    )
    info = read_operator_info(storage, 0)
    assert info is not None and info.partitions == 8
    assert info.state_variables == tuple(variables) and info.schema_paths == {"default": (path,)}


def test_no_operator_metadata_yet() -> None:
    assert read_operator_info(MemoryStorage(), 0) is None


@pytest.mark.parametrize(
    "text", ["", "rubbish", "{}\n", "v1\nrubbish", "v1\n[]", 'v1\n{"conf": 3}']
)
def test_a_damaged_offset_entry_is_an_error(text: str) -> None:
    with pytest.raises(FormatError, match="offsets/7") as caught:
        parse_offsets(text, 7)
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


@pytest.mark.parametrize(
    "text", ["", 'v2\n{"stateUniqueIds":[1]}', 'v1\n{"nextBatchWatermarkMs":"x"}']
)
def test_a_damaged_commit_entry_is_an_error(text: str) -> None:
    with pytest.raises(FormatError, match="commits/7") as caught:
        parse_commit(text, 7)
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


@pytest.mark.parametrize("text", ["v1\n{}", "v2\n", 'v1\n{"operatorInfo":{},"stateStoreInfo":[]}'])
def test_damaged_operator_metadata_is_an_error(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_operator_info(filled({"state/0/_metadata/metadata": text}), 0)
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


def test_a_newer_log_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="v9") as caught:
        parse_offsets("v9\n{}", 0)
    assert caught.value.kind is ErrorKind.FORMAT_TOO_NEW


def test_bytes_that_are_no_text_are_an_error() -> None:
    storage = MemoryStorage()
    storage.put_bytes("offsets/0", b"v1\n\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        read_spark_metadata(storage)


def test_the_id_of_a_store_in_the_commit_log() -> None:
    """A join has an id for each of its four stores. With column families it has one.

    An operator may live in partition 0 alone.
    """
    ids = {"0": [["a", "b", "c", "d"], ["e", "f", "g", "h"]], "1": [["i"]], "2": [["j", "k"]]}
    commit = parse_commit(
        "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}), 4
    )
    four = [
        "left-keyToNumValues",
        "left-keyWithIndexToValue",
        "right-keyToNumValues",
        "right-keyWithIndexToValue",
    ]
    assert [commit.id_of(StoreId(0, 1, name), four) for name in four] == ["e", "f", "g", "h"]
    assert commit.id_of(StoreId(1, 0, four[2]), four) == "i"
    assert commit.id_of(StoreId(1, 1, "default"), ["default"]) is None
    assert commit.id_of(StoreId(2, 0, "default"), ["default"]) is None, (
        "nothing tells which one it is"
    )
    assert commit.id_of(StoreId(3, 0, "default"), ["default"]) is None
    assert commit.id_of(StoreId(0, 0, "default"), four) is None


def test_all_that_was_listed_is_removed_meanwhile() -> None:
    """A query commits two batches and removes the first, while its logs are read."""

    class Overtaken(MemoryStorage):
        def read(self, key: str) -> bytes:
            if key == "offsets/0":
                self.put_bytes("offsets/1", offsets_text().encode())
                self.put_bytes("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
                self.delete(["offsets/0", "commits/0"])
            return super().read(key)

    storage = Overtaken()
    storage.put_bytes("offsets/0", offsets_text().encode())
    storage.put_bytes("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    assert read_spark_metadata(storage).kept_batches == (1,)


def test_commits_without_offsets_are_read_no_more_than_a_few_times() -> None:
    storage = filled({"commits/0": 'v1\n{"nextBatchWatermarkMs":0}', "offsets/5": "v1\nbroken\n-"})
    damaged: list[Any] = []
    assert read_spark_metadata(storage, damaged=damaged).kept_batches == ()
    assert [key for key, _ in damaged] == ["offsets/5"]
