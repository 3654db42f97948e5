"""What the benchmark of a large state tells of batches and samples."""

from __future__ import annotations

from typing import Any

from benchmarks.bench_contenders import BASELINE, CONTENDERS, OURS
from benchmarks.bench_large import markdown, parts, written_share

MIB = 1 << 20


def _batch(number: int, second: float, ms: float) -> dict[str, Any]:
    return {
        "batch": number,
        "second": second,
        "rows": 1000,
        "trigger_ms": ms,
        "state_rows_updated": 500,
    }


def _sample(second: float, mib: int) -> dict[str, Any]:
    names = ("resident_bytes", "written_bytes", "local_bytes", "stored_bytes")
    return {"second": second, **dict.fromkeys(names, mib * MIB)}


RAW: dict[str, Any] = {
    "load": [_batch(0, 10, 100.0), _batch(1, 20, 300.0)],
    "updates": [_batch(2 + i, 30.0 + 10 * i, 100.0 * (i + 1)) for i in range(5)],
    "samples": [_sample(15, 1), _sample(55, 7), _sample(80, 4)],
    "afterwards": {"stored, MiB": 12.0},
}


def test_the_updates_are_told_in_parts_of_the_same_time() -> None:
    assert [[b["batch"] for b in part] for part in parts(RAW, 2)] == [[2, 3], [4, 5, 6]]
    assert [len(part) for part in parts(RAW, 5)] == [1, 1, 1, 1, 1]
    assert [len(part) for part in parts({**RAW, "updates": RAW["updates"][:1]})] == [1]


def test_bytes_that_are_written_are_told_for_each_byte_that_was_put() -> None:
    assert written_share(RAW) == 4 * MIB / (7 * 500 * 104)


def test_a_line_has_the_pace_and_the_most_that_was_taken() -> None:
    text = markdown({"raw": {OURS: RAW}})
    assert "| load | 5 000 | 200 | 300 | 1.00 | 1.00 | 1.00 |" in text, text
    # no sample was taken meanwhile: the next one counts
    assert "| updates 1 | 10 000 | 100 | 100 | 7.00 | 7.00 | 7.00 |" in text, text
    assert "| stored, MiB | 12.0 |" in text


def test_each_store_gets_the_same_memory() -> None:
    (budget,) = CONTENDERS[OURS].bounded(512).values()
    assert budget == str(512 * MIB)
    assert list(CONTENDERS[BASELINE].bounded(512).values()) == ["true", "512"]
