"""Spark's logs as savepoints change them, and logs of file sources cut at an entry."""

from __future__ import annotations

import json

import pytest

from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.format import spark_names
from millpond.operations.savepoint.restored_image import placed
from millpond.query.image import Image
from millpond.spark import saved_logs, source_logs
from millpond.spark.log_entries import OffsetEntry, parse_offsets
from millpond.spark.sinks.file_log import interval_of


def line(batch: int) -> str:
    return json.dumps(
        {"path": f"file:///in/{batch}", "timestamp": batch, "batchId": batch}, separators=(",", ":")
    )


def log(last: int, *, keep_from: int = 0, interval: int = 10) -> dict[str, bytes]:
    """Return a log from which Spark deleted the entries below `keep_from`."""
    files = {}
    for entry in range(keep_from, last + 1):
        if (entry + 1) % interval == 0:
            files[f"{entry}.compact"] = "\n".join(["v1", *map(line, range(entry + 1))]).encode()
        else:
            files[str(entry)] = f"v1\n{line(entry)}".encode()
    return files


@pytest.mark.parametrize("interval", [10, 3])
@pytest.mark.parametrize("last", [0, 3, 8, 9, 10, 15, 19, 20, 28, 29, 31])
@pytest.mark.parametrize("keep_from", [0, 9, 12, 25, 29])
def test_cut_is_as_if_it_ended_there(last: int, keep_from: int, interval: int) -> None:
    """It does not matter whether Spark has deleted what a later compact file covers."""
    files = log(35, keep_from=keep_from, interval=interval)
    cut = source_logs.cut(files, last, files.__getitem__)
    assert cut is not None
    content = {name: files[name] if text is None else text for name, text in cut.items()}
    whole = log(last, interval=interval)
    first = (last + 1) // interval * interval - 1
    alone = [name for name in files if name.endswith(".compact")] == [f"{first}.compact"]
    assert content == {
        name: text
        for name, text in whole.items()
        if (entry := int(name.removesuffix(".compact"))) >= first
        or (not alone and entry == first - interval)
    }


@pytest.mark.parametrize("session", [1, 2, 4, 7, 20, 100])
@pytest.mark.parametrize("interval", [3, 10, 20])
@pytest.mark.parametrize("keep_from", [0, 19, 29])
def test_cut_has_the_interval_of_the_log(session: int, interval: int, keep_from: int) -> None:
    """Of one compact file Spark guesses the interval by that of its session.

    It looked for a compact file that the log did not have, and the query did not start.
    """
    files = log(75, keep_from=keep_from, interval=interval)
    for last in range(2 * interval - 1, 76):
        cut = source_logs.cut(files, last, files.__getitem__)
        assert cut is not None and interval_of(cut, session) == interval


@pytest.mark.parametrize(("last", "interval"), [(20, 30), (48, 30), (12, 20), (24, 20)])
def test_cut_of_a_log_with_one_compact_file_or_none(last: int, interval: int) -> None:
    """Ten was taken for the interval of a log that had none, or one at a multiple of ten."""
    files = log(last + 5, interval=interval)
    cut = source_logs.cut(files, last, files.__getitem__)
    assert cut == dict.fromkeys(
        log(last, keep_from=interval - 1 if last > interval else 0, interval=interval)
    )


def test_log_that_cannot_be_cut() -> None:
    files = log(8, keep_from=5)
    assert source_logs.cut(files, 7, files.__getitem__) is None
    with pytest.raises(FormatError) as caught:
        source_logs.cut(["9.compact"], 7, lambda name: b"v1\n{")
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


def test_other_names_are_passed_over() -> None:
    files = {**log(3), ".3.crc": b"", "x.compact": b"", "4.tmp": b""}
    assert source_logs.cut(files, 3, files.__getitem__) == dict.fromkeys(["0", "1", "2", "3"])


OFFSETS = 'v1\n{"batchWatermarkMs":1,"batchTimestampMs":2,"conf":{"a":"b"}}\n{"logOffset":7}\n42\n-'


def test_source_log_offset() -> None:
    entry = parse_offsets(OFFSETS, 3)
    assert [saved_logs.source_log_offset(entry, source) for source in "0123"] == [
        7,
        None,
        None,
        None,
    ]
    named = parse_offsets('v2\n{"conf":{}}\n1:-\n0:{"logOffset":9}\nclicks:{"logOffset":4}', 3)
    assert [
        saved_logs.source_log_offset(named, source) for source in ("0", "1", "2", "clicks")
    ] == [
        9,
        None,
        None,
        4,
    ]


def _offsets(*lines: str) -> OffsetEntry:
    return parse_offsets("\n".join(['v1\n{"batchWatermarkMs":1,"conf":{}}', *lines]), 3)


@pytest.mark.parametrize(
    ("lines", "folders"),
    [
        ((7, 3), (7, 3)),  # as many lines as folders: each folder has its own
        ((7, 7, 3), (7, 7)),  # the first one is read twice
        ((3, 3, 7), (3, 7)),
        ((3, 7, 7), (7, 7)),
        ((None, 7), (None, 7)),
        ((3,), (3, None)),
    ],
)
def test_last_source_log_offset(
    lines: tuple[int | None, ...], folders: tuple[int | None, ...]
) -> None:
    entry = _offsets(*("-" if n is None else f'{{"logOffset":{n}}}' for n in lines))
    found = [
        saved_logs.last_source_log_offset(entry, str(n), len(folders)) for n in range(len(folders))
    ]
    assert found == list(folders)


def _named(*lines: str, conf: dict[str, str] | None = None) -> OffsetEntry:
    head = json.dumps({"batchWatermarkMs": 1, "conf": conf or {}})
    return parse_offsets("\n".join(["v2", head, *lines]), 3)


@pytest.mark.parametrize(
    ("lines", "folders"),
    [
        # As Spark 4.3 writes them: in no order, and none of a source that gave nothing yet.
        (("1:4", "0:9"), {"0": 9, "1": 4, "x": None}),
        (("1:4", "0:9", "2:1", "3:0"), {"0": 9, "1": 4, "2": 1, "3": 0, "4": None}),
        (("1:9", "2:4", "3:7"), {"0": 9, "1": 9, "2": 7}),  # one of them is read twice, or is void
        (("0:5", "2:4"), {"0": 5, "1": 4, "2": 4}),
        (("clicks:9", "views:4"), {"clicks": 9, "views": 4, "0": None}),
    ],
)
def test_last_source_log_offset_of_v2(
    lines: tuple[str, ...], folders: dict[str, int | None]
) -> None:
    """A source got the offset of another one, whose line has its number for a position."""
    texts = [line.replace(":", ':{"logOffset":') + "}" for line in lines]
    entry = _named(*texts)
    found = {name: saved_logs.last_source_log_offset(entry, name, 3) for name in folders}
    assert found == folders


def test_names_of_digits_are_names() -> None:
    conf = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
    entry = _named('10:{"logOffset":7}', '3:{"logOffset":2}', conf=conf)
    assert [saved_logs.last_source_log_offset(entry, name, 11) for name in ("3", "10")] == [2, 7]
    text = ("v2\n" + json.dumps({"conf": conf}) + "\n10:5").encode()
    with pytest.raises(UnsupportedError, match="names"):
        saved_logs.with_offsets(text, {10: "6"})


def test_with_offsets() -> None:
    head, named = (
        OFFSETS.encode().split(b"\n")[:2],
        b'v2\n{"conf":{}}\nclicks:{"logOffset":9}\n1:5\n0:-',
    )
    assert saved_logs.with_offsets(OFFSETS.encode(), {}) == b"\n".join([*head, b"-", b"-", b"-"])
    assert saved_logs.with_offsets(OFFSETS.encode(), {1: '{"a":{"0":1}}'}) == b"\n".join(
        [*head, b"-", b'{"a":{"0":1}}', b"-"]
    )
    assert saved_logs.with_offsets(named, {}) == b'v2\n{"conf":{}}\nclicks:-\n1:-\n0:-'
    with pytest.raises(UnsupportedError, match="clicks"):
        saved_logs.with_offsets(named, {1: "6"})
    numbered = b'v2\n{"conf":{}}\n0:{"a":1}\n1:5'
    assert saved_logs.with_offsets(numbered, {1: "6"}) == b'v2\n{"conf":{}}\n0:-\n1:6'
    first = b'v2\n{"conf":{}}\n1:5'  # source 0 has given nothing yet
    assert saved_logs.with_offsets(first, {0: "6"}) == b'v2\n{"conf":{}}\n1:-\n0:6'


def test_commit_with_operators() -> None:
    plain = b'v1\n{"nextBatchWatermarkMs":5}'
    assert saved_logs.commit_with_operators(plain, {}, name="x") == plain
    text = b'v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["a"]],"1":[["b","c"]]}}'
    assert saved_logs.commit_with_operators(text, {0: 0, 1: 1}, name="x") == text
    changed = saved_logs.commit_with_operators(text, {1: 4}, name="x")
    assert changed == b'v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"4":[["b","c"]]}}'
    with pytest.raises(FormatError, match="x: damaged"):
        saved_logs.commit_with_operators(b"v2\n{", {}, name="x")


def test_operator_metadata() -> None:
    path = "file:/a b/state/0/_stateSchema/default/0_1"
    body = {
        "operatorInfo": {"operatorId": 0, "operatorName": "x"},
        "stateStoreInfo": [
            {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [path]}
        ],
        "operatorPropertiesJson": "{}",
    }
    text = b"v2\n" + json.dumps(body).encode()
    assert saved_logs.schema_paths(text, name="x") == [path]
    changed = saved_logs.operator_metadata(text, 3, lambda p: p.replace("/a b", "/c"), name="x")
    parsed = json.loads(changed.partition(b"\n")[2])
    assert parsed["operatorInfo"]["operatorId"] == 3
    assert parsed["stateStoreInfo"][0]["stateSchemaFilePaths"] == [
        "file:/c/state/0/_stateSchema/default/0_1"
    ]


@pytest.mark.parametrize(
    ("root", "uri"),
    [
        ("/a b", "file:/a b"),
        ("file:///a", "file:/a"),
        ("s3a://b/new", "s3a://b/new"),
        ("s3://b/new/", "s3a://b/new"),
        ("hdfs://nn:8020/new", "hdfs://nn:8020/new"),
        ("abfss://c@a.dfs.core.windows.net/new", "abfss://c@a.dfs.core.windows.net/new"),
    ],
)
def test_spark_finds_the_schemas_of_a_new_checkpoint(root: str, uri: str) -> None:
    """It knows no `s3:`. A fork to such a place could not be started."""
    key = f"{spark_names.operator_metadata_v2_prefix(0)}0"
    schema = "state/0/_stateSchema/default/0_1"
    body = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateExec"},
        "stateStoreInfo": [
            {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [schema]}
        ],
    }
    image = Image(
        batch=0,
        planned_batch=None,
        query_id=None,
        provider=None,
        spark_checkpoint_format=2,
        partitions=2,
        max_parallelism=None,
        key_group_base=None,
        watermark_ms=0,
        timestamp_ms=0,
        operators=(),
        texts={key: b"v2\n" + json.dumps(body).encode()},
        files=(),
    )
    written = placed(image, root).texts[key]
    assert saved_logs.schema_paths(written, name=key) == [f"{uri}/{schema}"]
