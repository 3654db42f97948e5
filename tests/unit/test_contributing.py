"""CONTRIBUTING's tour names functions. Each one is in the file that the tour says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOTS = {".scala": "jvm-shim/src/main/scala", ".py": "python/src/millpond"}
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def steps() -> list[tuple[str, str]]:
    """Return the function and the file of each step. "`a` and `b` in `file`" are two steps."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    tour = " ".join(text.partition("## The ten-minute tour")[2].partition("\n## ")[0].split())
    found = re.findall(r"((?:`\w+` and )?`\w+`) in `([\w/]+\.(?:scala|py))`", tour)
    return [
        (name, file) for names, file in found for name in re.findall(r"\w+", names) if name != "and"
    ]


@pytest.mark.parametrize(("name", "file"), steps(), ids=" in ".join)
def test_a_function_of_the_tour_is_where_the_tour_says(
    name: str, file: str, repository: Path
) -> None:
    path = repository / ROOTS[Path(file).suffix] / file
    assert path.is_file(), "moved: say in CONTRIBUTING.md where to"
    text = path.read_text(encoding="utf-8")
    assert re.search(rf"\bdef {name}\b", text), f"no function {name}: mend CONTRIBUTING.md"


def test_the_tour_shows_five_ways() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert re.findall(r"^An? \*\*(\w+)\*\*", text, re.MULTILINE) == [
        "put",
        "commit",
        "restore",
        "savepoint",
        "rescale",
    ]
    assert len(steps()) > 35
    files = re.findall(r"`[\w/]+\.(?:scala|py)`", text.partition("## The ten-minute tour")[2])
    assert len(steps()) >= len(files) - 4
