"""How a run of Spark's suites is read and judged, and that the page shows the saved results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from integration.peers.results import Result
from integration.peers.spark.outcomes import Outcome, judge, read
from integration.peers.spark.reasons import REASONS, Reason
from integration.peers.spark.results import PAGE, page, saved, summary
from integration.peers.spark.suites import SAMPLE, SUITES, chosen

_TABLE = (Reason("SomeSuite", "golden", "FOREIGN", "It opens files of RocksDB."),)


def _outcome(
    said: str, *, test: str = "a golden test", error: str = "", stores: int = 1
) -> Outcome:
    return Outcome("org.example.SomeSuite", test, said, error, stores)


def test_the_page_shows_the_saved_results() -> None:
    assert PAGE.read_text() == page(), "run: python -m integration.peers.spark.results"
    file = Path(__file__).parents[2] / "integration" / "peers" / "results" / "spark.json"
    assert Result(**json.loads(file.read_text())) == summary(saved())


def test_a_test_counts_as_passed_only_if_it_opened_a_store() -> None:
    none = [_outcome("passed", test=test, stores=0) for test in "yz"]
    none[1] = dataclasses.replace(none[1], sparks_stores=1)
    judged = judge([_outcome("passed", test="x"), *none], ())
    assert judged.passed == ["x"]
    assert judged.not_applicable == {
        "y": "It opens no store, of Millpond's or of Spark's.",
        "z": "It opens a store of Spark's alone: it makes it itself, or names no provider.",
    }


def test_a_test_in_the_table_that_passes_is_stale() -> None:
    assert judge([_outcome("passed")], _TABLE).stale == ["a golden test"]


def test_the_table_excuses_only_the_error_that_it_names() -> None:
    expected = _outcome("failed", error="MILLPOND_FOREIGN_CHECKPOINT")
    other = _outcome("failed", error="a row is missing")
    judged = judge([expected], _TABLE)
    assert judged.not_applicable == {"a golden test": "It opens files of RocksDB."}
    assert not judged.failed
    assert judge([other], _TABLE).failed == {"a golden test": "a row is missing"}


def test_an_aborted_suite_failed() -> None:
    assert judge([_outcome("aborted", test="", error="no class")], ()).failed == {"": "no class"}


def test_a_test_that_does_not_link_is_excused_on_another_spark_only() -> None:
    unlinked = [_outcome("failed", error="java.lang.NoSuchMethodError: x")]
    assert judge(unlinked, ()).failed
    assert not judge(unlinked, (), other_spark=True).failed
    assert judge([_outcome("failed", error="no row")], (), other_spark=True).failed


def test_stores_count_for_the_test_during_which_they_began(tmp_path: Path) -> None:
    events = [("first", 100, 199, "passed"), ("second", 200, 300, "passed"), ("", 301, 301, "")]
    (tmp_path / "report").write_text(
        "\n".join(
            json.dumps(
                {
                    "suite": "S",
                    "test": test,
                    "outcome": said or "completed",
                    "error": "",
                    "began_ms": began,
                    "ended_ms": ended,
                }
            )
            for test, began, ended, said in events
        )
    )
    (tmp_path / "stores").write_text("250 millpond\n150 spark\n200 millpond\n")
    found = [(o.test, o.stores, o.sparks_stores) for o in read(tmp_path)["S"]]
    assert found == [("first", 0, 1), ("second", 2, 0)]


def test_a_suite_that_did_not_end_has_no_result(tmp_path: Path) -> None:
    line = {"suite": "S", "test": "t", "outcome": "passed", "error": ""}
    (tmp_path / "report").write_text(json.dumps({**line, "began_ms": 1, "ended_ms": 2}))
    assert read(tmp_path) == {}


def test_some_reasons_hold_only_for_tests_of_another_spark() -> None:
    table = [Reason(".*", "", "no row", "It fails with Spark's own stores as well.", True)]
    failed = [_outcome("failed", error="no row")]
    assert judge(failed, table).failed
    assert not judge(failed, table, other_spark=True).failed
    assert judge([_outcome("passed")], table, other_spark=True).stale
    assert not judge([_outcome("passed")], table).stale


def test_suites_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_SUITES", "StreamSuite TimerSuite")
    assert chosen() == ["StreamSuite", "TimerSuite"]
    monkeypatch.setenv("MILLPOND_SUITES", "NoSuite")
    with pytest.raises(ValueError, match="NoSuite"):
        chosen()


def test_the_sample_and_the_table_name_suites_that_run() -> None:
    assert set(SAMPLE) <= set(SUITES)
    assert all(any(reason.fits_suite(suite) for suite in SUITES) for reason in REASONS)
