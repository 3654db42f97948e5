"""The journal of a rescale."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millpond.errors import ErrorKind, MillpondError
from millpond.format import layout
from millpond.format.rescale_journal import KIND, Journal, decode_journal, encode_journal
from millpond.format.sealed import seal
from millpond.query.rescaling import unfinished_rescale
from millpond.storage import MemoryStorage

JOURNAL = Journal(
    current=4,
    partitions=8,
    batch=19,
    offsets_crc32=7,
    keys=("state/0/0/20.manifest",),
    created_ms=1,
    format_before=b"a format\n",
    left_out_before="v1\n{ü}".encode(),
    sink="file:/data/out",
    sink_sums={"_spark_metadata/18": 1, "_spark_metadata/19.compact": 2},
)


def changed(**fields: object) -> bytes:
    body: dict[str, Any] = json.loads(encode_journal(JOURNAL).partition(b"\n")[2])
    return seal(KIND, {**body, **fields})


def test_it_comes_back_as_it_was() -> None:
    assert decode_journal(encode_journal(JOURNAL)) == JOURNAL


@pytest.mark.parametrize(
    "key",
    [
        "rows.parquet",
        "_spark_metadata",
        "_spark_metadata/",
        "_spark_metadata/.18.crc",
        "_spark_metadata/018",
        "_spark_metadata/18/rows.parquet",
        "_spark_metadata/../rows.parquet",
        "../_spark_metadata/18",
        "/_spark_metadata/18",
        "_spark_metadata/20",  # above the batch
        "_spark_metadata/29.compact",
    ],
)
def test_a_file_that_is_no_entry_of_a_sinks_log_is_refused(key: str) -> None:
    sink = {"path": "file:/", "entries": [{"key": key, "crc32": 0}]}
    with pytest.raises(MillpondError) as refused:
        decode_journal(changed(sink=sink))
    assert refused.value.kind is ErrorKind.UNSAFE_PATH


@pytest.mark.parametrize("field", ["format_before", "left_out_before"])
def test_a_content_that_is_no_text_is_refused(field: str) -> None:
    data = changed(**{field: "\ud800"})
    with pytest.raises(MillpondError) as refused:
        decode_journal(data)
    assert refused.value.kind is ErrorKind.FORMAT_DAMAGED and field in str(refused.value)
    storage = MemoryStorage()
    storage.put_bytes(layout.RESCALE_JOURNAL_KEY, data)
    told = unfinished_rescale(storage, "it")
    assert told is not None and told.kind is ErrorKind.RESCALE_UNFINISHED
