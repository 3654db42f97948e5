"""The guide *Changing a job*: its tables are those that tests prove, line by line."""

from __future__ import annotations

from pathlib import Path

from integration.changes import CHANGES
from integration.changes.table import ELSEWHERE, PROCESSOR, with_tables
from tests.conftest import Golden


def test_the_tables_are_current(golden: Golden, repository: Path) -> None:
    page = repository / "docs/guides/changing.md"
    text = page.read_text()
    assert text.count("| change | what Spark does |") == 2
    golden.check(page, with_tables(text).encode())


def test_each_line_names_a_test_that_is_there(repository: Path) -> None:
    names = [change.name for change in CHANGES]
    assert len(set(names)) == len(names)
    plan = (repository / "integration/test_plan.py").read_text()
    assert [n for n in PROCESSOR if f'"{n.removesuffix("-avro")}' not in plan] == []
    for file, name in ELSEWHERE:
        assert f"def {name}(" in (repository / file).read_text()


def test_a_line_says_that_spark_refuses_exactly_where_it_does() -> None:
    wrong = [c.name for c in CHANGES if bool(c.refused) is not c.spark.startswith("refuses")]
    assert wrong == []
    named = [c.name for c in CHANGES if "`" in c.spark and f"`{c.refused}`" not in c.spark]
    assert named == []
    assert [n for n, line in PROCESSOR.items() if bool(line.refused) is bool(line.spark)] == []
