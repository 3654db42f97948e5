"""The form of the Scala sources, and the texts in them that tests hold. This needs no JVM."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.simulation.defects import MUTANTS, Mutant

WIDTH = 100
# What takes the default locale. `formatLocal` and `toLowerCase(Locale.ROOT)` say which one.
BY_DEFAULT = re.compile(
    r'\bf"|(?:"|String)\.format\(|to(?:Lower|Upper)Case(?!\((?:Locale\.)?ROOT\))'
)
# Time of the machine that is written down, shown, or told to Spark.
TIMES = {
    "changelog/PendingChangelog.scala",
    "driver/AskedPartitions.scala",
    "driver/Heartbeats.scala",
    "driver/History.scala",
    "engine/BatchLog.scala",
    "engine/Shown.scala",
    "engine/Snapshots.scala",
    "observe/Metrics.scala",
    "observe/ObservedStore.scala",
    "observe/Report.scala",
    "observe/StatePage.scala",
    "provider/StoreProvider.scala",
}


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


def test_no_pause_is_measured_by_the_clock_of_the_machine(repository: Path) -> None:
    """If somebody sets that back by an hour, such a pause takes an hour more: `Clock.passedMs`."""
    sources = repository / "jvm-shim/src/main/scala"
    asking = {
        str(path.relative_to(sources))
        for path in sources.rglob("*.scala")
        if "currentTimeMillis" in path.read_text()
    }
    assert asking == TIMES


def test_no_text_depends_on_the_language_of_the_machine(repository: Path) -> None:
    """In Persian a number had other digits, in Turkish MIN no small i: what was parsed, was not."""
    sources = repository / "jvm-shim/src/main"
    found = [
        f"{path.relative_to(sources)}:{number}"
        for path in sorted(sources.rglob("*.scala"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BY_DEFAULT.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_finds_the_text_that_it_changes(mutant: Mutant, repository: Path) -> None:
    for file, old, new in mutant.edits:
        assert (repository / file).read_text().count(old) == 1, f"{file}: {old!r}"
        assert new != old
