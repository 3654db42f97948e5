"""The files in which the driver keeps what Spark said of the last batches."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format.layout import HISTORY_PREFIX, HistoryFile, parse_history
from millpond.operations.inspect.history import history
from millpond.spark.progress import read_progress
from millpond.storage import MemoryStorage

RUN, LATER = "48e3456b-99a1-4295-9d50-b1b4c0e03cfa", "00e3456b-99a1-4295-9d50-b1b4c0e03cfa"


def progress(batch: int, run: str = RUN, **changes: Any) -> dict[str, Any]:
    return {
        "runId": run,
        "timestamp": "2026-11-23T15:43:51.688Z",
        "batchId": batch,
        "batchDuration": 221,
        "numInputRows": 7,
        "durationMs": {"addBatch": 124, "triggerExecution": 221},
        "eventTime": {"watermark": "2026-11-23T15:43:50.294Z"},
        "stateOperators": [
            {
                "operatorName": "stateStoreSave",
                "numRowsTotal": 11,
                "numRowsUpdated": 3,
                "commitTimeMs": 10,
                "memoryUsedBytes": 1000,
                "customMetrics": {
                    "SnapshotLastUploaded.partition_0_default": 0,
                    "millpondSnapshotCount": 2,
                },
            }
        ],
        "sink": {"description": "NoopTable", "numOutputRows": -1},
        **changes,
    }


def packed(*batches: dict[str, Any]) -> bytes:
    return gzip.compress("".join(json.dumps(batch) + "\n" for batch in batches).encode())


def put(
    storage: MemoryStorage, start: int, run: str, part: int, data: bytes, batches: int = 1
) -> str:
    key = f"{HISTORY_PREFIX}{start:013d}-{run}-{part:06d}-{batches:04d}.jsonl.gz"
    storage.put_bytes(key, data)
    return key


def test_names_are_parsed_and_no_others() -> None:
    key = f"{HISTORY_PREFIX}1795448620279-{RUN}-000012-0100.jsonl.gz"
    assert parse_history(key) == HistoryFile(1795448620279, RUN, 12, 100)
    long = f"{HISTORY_PREFIX}11795448620279-{RUN}-1000000-10000.jsonl.gz"
    assert parse_history(long) == HistoryFile(11795448620279, RUN, 1_000_000, 10_000)
    for other in (
        key + ".crc",
        key.removeprefix("millpond/"),
        key.replace("0012-", "12-"),
        "",
        "a",
    ):
        assert parse_history(other) is None, other


def test_batches_come_by_run_and_part() -> None:
    storage = MemoryStorage()
    put(storage, 1, RUN, 1, packed(progress(2), progress(3)))
    put(storage, 1, RUN, 0, packed(progress(0), progress(1)))
    put(storage, 2, LATER, 0, packed(progress(3, LATER)))
    storage.put_bytes(f"{HISTORY_PREFIX}.left.tmp", b"?")
    found, problems = read_progress(storage)
    assert problems == []
    assert [(b.batch, b.run_id) for b in found] == [
        *((n, RUN) for n in range(4)),
        (3, LATER),
    ]
    assert [b.batch for b in read_progress(storage, 3)[0]] == [2, 3, 3]
    first = found[0]
    assert (first.at_ms, first.duration_ms, first.input_rows) == (1795448631688, 221, 7)
    assert first.output_rows is None and first.watermark == "2026-11-23T15:43:50.294Z"
    (operator,) = first.operators
    assert (operator.rows, operator.rows_updated, operator.commit_ms) == (11, 3, 10)
    assert operator.metrics == {"millpondSnapshotCount": 2}


def test_parts_with_a_digit_more_come_later() -> None:
    storage = MemoryStorage()
    for batch, part in enumerate((999_999, 1_000_000, 1_000_001)):
        put(storage, 1, RUN, part, packed(progress(batch)))
    found, problems = read_progress(storage)
    assert [b.batch for b in found] == [0, 1, 2] and problems == []


@pytest.mark.parametrize("cut", [0, 5, 60, 200])
def test_a_file_in_the_making_gives_its_whole_lines(cut: int) -> None:
    storage = MemoryStorage()
    whole = packed(*(progress(n, numInputRows=n * n) for n in range(40)))
    put(storage, 1, RUN, 0, whole[:cut] if cut < 200 else whole[:-12], 40)
    found, problems = read_progress(storage)
    assert problems == []
    assert [b.batch for b in found] == list(range(len(found))) and len(found) <= 40
    before = put(storage, 1, RUN, 0, packed(*(progress(n) for n in range(39))), 39)
    assert len(read_progress(storage)[0]) >= 39
    put(storage, 1, RUN, 0, whole, 40)
    assert len(read_progress(storage)[0]) == 40
    storage.delete([before])
    assert len(read_progress(storage)[0]) == 40


def test_a_truncated_file_that_nobody_writes_any_more_is_named() -> None:
    storage = MemoryStorage()
    whole = packed(*(progress(n) for n in range(40)))
    cut = put(storage, 1, RUN, 0, whole[:-12], 40)
    put(storage, 1, RUN, 1, packed(progress(40))[:-12])  # its driver may be at it
    put(storage, 2, LATER, 0, packed(progress(3, LATER)))
    found, problems = read_progress(storage)
    assert problems == [f"{cut}: it is not whole"]
    assert found[-1].batch == 3 and len(found) > 20, "what is there counts"


def test_a_file_that_is_replaced_after_it_was_listed_is_read_again() -> None:
    class Replaced(MemoryStorage):
        def read(self, key: str) -> bytes:
            if key == old and old in {info.key for info in self.list("")}:
                put(self, 1, RUN, 0, packed(progress(0), progress(1)), 2)
                self.delete([old])
            return super().read(key)

    storage = Replaced()
    old = put(storage, 1, RUN, 0, packed(progress(0)), 1)
    found, problems = read_progress(storage)
    assert [b.batch for b in found] == [0, 1] and problems == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no gzip", "it is damaged"),
        (gzip.compress(b"{}\n"), "a line is no progress of a batch: KeyError"),
        (gzip.compress(b"[1]\n"), "a line is no progress of a batch: AttributeError"),
        (gzip.compress(b"\xff\n"), "a line is no progress of a batch: UnicodeDecodeError"),
        (packed(progress(0, durationMs=[])), ""),
        (packed(progress(0, durationMs=[1])), "a line is no progress of a batch: TypeError"),
        (
            packed(progress(0, stateOperators=[1])),
            "a line is no progress of a batch: AttributeError",
        ),
        (packed(progress(0, timestamp="now")), "a line is no progress of a batch: ValueError"),
    ],
    ids=["no gzip", "no batch", "a list", "no text", "fine", "durations", "operators", "time"],
)
def test_damage_is_named_and_hides_no_other_file(data: bytes, why: str) -> None:
    storage = MemoryStorage()
    key = put(storage, 1, RUN, 0, data)
    put(storage, 1, RUN, 1, packed(progress(5)))
    found, problems = read_progress(storage)
    assert found[-1].batch == 5
    assert problems == ([f"{key}: {why}"] if why else [])


def test_what_is_no_checkpoint_is_refused() -> None:
    with pytest.raises(InvalidInputError) as refused:
        history(MemoryStorage(), "here")
    assert refused.value.kind is ErrorKind.NOT_A_CHECKPOINT
    with pytest.raises(InvalidInputError) as refused:
        history(MemoryStorage(), "here", 0)
    assert refused.value.kind is ErrorKind.INVALID_ARGUMENT
