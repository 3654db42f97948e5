"""docs/reference/peers.md is what the saved results make it."""

from __future__ import annotations

import pytest

from integration.peers import matrix, sample
from integration.peers.results import PAGE, PEERS, Result, page


def test_the_page_shows_the_saved_results() -> None:
    assert PAGE.read_text() == page(), "run: python -m integration.peers.results"


def test_the_table_of_storages_shows_the_saved_notes() -> None:
    assert matrix.PAGE.read_text() == matrix.page(), "run: python -m integration.peers.matrix"


def test_a_result_counts_outcomes_and_keeps_reasons() -> None:
    result = Result.of(
        next(iter(PEERS)),
        {"Broker": "1.0"},
        {
            "a.py::test_one": ("passed", ""),
            "a.py::test_two[x::y]": ("failed", ""),
            "a.py::test_three": ("not applicable", "the broker has no quota"),
        },
    )
    assert result.passed == 1
    assert result.failed == ["test_two[x::y]"]
    assert result.not_applicable == {"test_three": "the broker has no quota"}
    assert result.versions["Broker"] == "1.0"


def test_a_sample_that_cannot_even_begin_fails_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["no_such_peer", "nor_this"]) == 1
    said = capfd.readouterr().out
    assert said.index("integration.peers.no_such_peer") < said.index("integration.peers.nor_this")
    assert sample.main([]) == 0
