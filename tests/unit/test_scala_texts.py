"""The form of the Scala sources, and the texts in them that tests hold. This needs no JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.simulation.defects import MUTANTS, Mutant

WIDTH = 100


def test_no_line_is_too_long(repository: Path) -> None:
    sources = sorted((repository / "jvm-shim").rglob("*.scala"))
    assert len(sources) > 100
    wide = [
        f"{path.relative_to(repository)}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > WIDTH
    ]
    assert wide == []


def test_the_formatter_keeps_to_the_same_width(repository: Path) -> None:
    assert f"maxColumn = {WIDTH}" in (repository / ".scalafmt.conf").read_text().splitlines()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_finds_the_text_that_it_changes(mutant: Mutant, repository: Path) -> None:
    for file, old, new in mutant.edits:
        assert (repository / file).read_text().count(old) == 1, f"{file}: {old!r}"
        assert new != old
