"""The pages say the same of versions as the build files."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib

from millpond import __version__


def test_the_changelog_has_a_section_for_this_version(repository: Path) -> None:
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.findall(r"^## (\S+), (.+)$", text, re.MULTILINE)[0]
    assert first[0] == __version__
    assert first[1] == "not released yet" or re.fullmatch(r"\d{4}-\d\d-\d\d", first[1])
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed"}


def test_lines_of_spark_and_python_are_those_of_the_build(repository: Path) -> None:
    folders = (repository / "jvm-shim/src/main").glob("scala-spark-*")
    lines = sorted((folder.name.removeprefix("scala-spark-") for folder in folders), reverse=True)
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    python = project["requires-python"].removeprefix(">=")
    minor = ".".join(__version__.split(".")[:2])
    row = f"| {minor} | {', '.join(lines)} | 2.13 | 17 or newer | {python} or newer |"
    for page in ("README.md", "docs/reference/versions.md"):
        assert row in (repository / page).read_text(encoding="utf-8"), page
    newest, oldest = (tuple(map(int, line.split("."))) for line in (lines[0], lines[-1]))
    (spark,) = (need for need in project["dependencies"] if need.startswith("pyspark"))
    assert spark == f"pyspark>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^PREVIOUS := {re.escape(lines[1])}$", makefile, re.MULTILINE)


def test_a_release_is_made_with_what_is_there(repository: Path) -> None:
    text = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    release = text.partition("## A release")[2].partition("\n## ")[0]
    targets = re.findall(r"^([\w-]+):", (repository / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([\w-]+)`", release)) <= set(targets)
    for path in re.findall(r"`((?:python|tests|\.ci)/[\w./-]+|CHANGELOG\.md)`", release):
        assert (repository / path).exists(), path
