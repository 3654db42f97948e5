"""Events: the table, the page, the text of a line, and that only declared ones are logged."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from millpond.events import EVENTS, FIELDS, STORE_FIELDS, emit, line, shortened
from millpond.reference import events_json, events_markdown
from tests.conftest import Golden


def test_documentation_is_up_to_date(golden: Golden, repository: Path) -> None:
    golden.check(repository / "docs/reference/events.md", events_markdown().encode())


def test_names_and_fields_stay(golden: Golden, repository: Path) -> None:
    """People search logs for them. A new line is fine, a changed one breaks somebody."""
    content = "".join(f"{name} {' '.join(EVENTS[name].fields)}\n" for name in sorted(EVENTS))
    golden.check(repository / "tests/golden/v1/events.txt", content.encode())


def test_every_field_is_explained_and_used() -> None:
    used = {field for info in EVENTS.values() for field in info.fields} | set(STORE_FIELDS)
    assert used == set(FIELDS)
    for info in EVENTS.values():
        assert info.when.endswith(".") and info.then.endswith(".")
        assert "|" not in info.when + info.then
        assert not set(info.fields) & set(STORE_FIELDS)


def test_json_for_the_jar() -> None:
    table = json.loads(events_json())
    assert list(table) == list(EVENTS)
    assert table["snapshot_made"]["fields"][:4] == list(STORE_FIELDS)
    assert table["agent_lost"]["fields"] == list(EVENTS["agent_lost"].fields)


def test_text_of_a_line() -> None:
    said = line("files_deleted", store='a "b"=c\n', version=3, reason="", bytes=-1)
    assert said == r'event=files_deleted store="a \"b\"=c\n" version=3 reason="" bytes=-1'
    assert len(said.splitlines()) == 1


def test_a_long_reason_is_cut() -> None:
    assert shortened("x" * 300) == "x" * 300
    assert shortened("x" * 301) == "x" * 297 + "..."


def test_an_event_has_the_level_of_the_table(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "millpond.events"):
        emit("files_deleted", version=1)
        emit("snapshot_passed_over", version=1)
    assert [(r.levelname, r.getMessage().split()[0]) for r in caplog.records] == [
        ("INFO", "event=files_deleted"),
        ("WARNING", "event=snapshot_passed_over"),
    ]


# What is given to a call: `"name" -> value` in Scala, `name=value` in Python.
_SCALA = re.compile(
    r'(?:note|noteError|Event\.of)\(\s*"([a-z_]+)"((?:[^()]|\([^()]*(?:\([^()]*\))?\))*)'
)
_PYTHON = re.compile(r'emit\(\s*"([a-z_]+)",((?:[^()]|\([^()]*(?:\([^()]*\))?[^()]*\))*)\)')
_ERROR = ("error", "reason")


def test_scala_logs_what_is_declared(repository: Path) -> None:
    found = set()
    for path in sorted((repository / "jvm-shim/src/main/scala").rglob("*.scala")):
        text = path.read_text()
        for match in _SCALA.finditer(text):
            name, arguments = match.groups()
            fields = re.findall(r'"([a-z_]+)"\s*->', arguments)
            if match[0].startswith("noteError"):
                fields += _ERROR
            assert sorted(fields) == sorted(EVENTS[name].fields), f"{path.name}: {name}"
            assert "shim" in EVENTS[name].by
            found.add(name)
    assert found == {name for name, info in EVENTS.items() if "shim" in info.by}


def test_python_logs_what_is_declared(repository: Path) -> None:
    found = set()
    for path in sorted((repository / "python/src/millpond").rglob("*.py")):
        for name, arguments in _PYTHON.findall(path.read_text()):
            fields = re.findall(r"^\s*([a-z_]+)=", arguments, re.MULTILINE)
            assert sorted(fields) == sorted(EVENTS[name].fields), f"{path.name}: {name}"
            assert ("**context.event_fields" in arguments) == EVENTS[name].store
            assert "agent" in EVENTS[name].by
            found.add(name)
    assert found == {name for name, info in EVENTS.items() if "agent" in info.by}
