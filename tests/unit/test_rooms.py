"""The map of the package says what the rule says. `make lint` proves the rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tomllib


@pytest.fixture
def rooms(repository: Path) -> list[str]:
    """Return the rooms as the rule of their order names them."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = [c["layers"] for c in contracts if c["containers"] == ["millpond"]]
    return [room for layer in layers for room in layer.split(" | ")]


def test_the_map_and_its_picture_name_every_room(repository: Path, rooms: list[str]) -> None:
    page = (repository / "docs/design/architecture.md").read_text()
    picture = (repository / "docs/design/architecture.svg").read_text()
    for room in rooms:
        if not room.startswith("_") and room != "keygroups":  # an old name
            assert re.search(rf"^\| [^|]*`{room}`", page, re.MULTILINE), room
            assert re.search(rf">[^<]*\b{room}\b", picture), room


def test_every_file_that_the_map_names_is_there(repository: Path) -> None:
    page = (repository / "docs/design/architecture.md").read_text() + (
        repository / "CONTRIBUTING.md"
    ).read_text()
    package = repository / "python/src/millpond"
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page)
    assert len(named) > 15
    assert [
        name for name in named if not any((root / name).is_file() for root in (package, repository))
    ] == []


def test_every_room_says_what_lives_in_it(repository: Path, rooms: list[str]) -> None:
    package = repository / "python/src/millpond"
    for room in rooms:
        path = package / room / "__init__.py"
        path = path if path.is_file() else package / f"{room}.py"
        assert ast.get_docstring(ast.parse(path.read_text())), path
