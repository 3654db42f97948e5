"""The page on what works says what the tests prove. Every proof that it names exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.shapes import SHAPES, result, table
from integration.what_works import FEATURES, NOT_YET, Feature, markdown
from tests.conftest import Golden


def test_page_is_current(golden: Golden, repository: Path) -> None:
    golden.check(repository / "docs/reference/what-works.md", markdown().encode())


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.what)
def test_proof_exists(feature: Feature, repository: Path) -> None:
    if feature.status == NOT_YET:
        assert not feature.proof
        return
    path, _, name = feature.proof.partition("::")
    source = (repository / path).read_text()
    assert f"def {name}(" in source if name else "def test_" in source


def test_shapes_are_many_and_have_names_of_their_own() -> None:
    names = [case.name for case in SHAPES]
    assert len(names) == len(set(names)) >= 40
    assert all(case.operator for case in SHAPES)
    assert {case.checkpoint_format for case in SHAPES} == {1, 2}
    assert {case.mode for case in SHAPES} == {"append", "update", "complete"}


def test_table_names_what_differs() -> None:
    lines = table([(SHAPES[0], 5, 95, "passed"), (SHAPES[1], 0, 0, "failed")])
    assert lines[1].endswith("equal") and lines[2].endswith("DIFFERENT")
    refused = next(case for case in SHAPES if case.refused and case.later is None)
    assert result(refused, "passed") == "refused by both"
