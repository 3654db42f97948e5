"""The packages of the shim import downwards only. `package.scala` of each says what lives there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# A package, and the packages that it imports. Those all stand above it.
ARROWS: tuple[tuple[str, frozenset[str]], ...] = (
    ("base", frozenset()),
    ("agent", frozenset({"base"})),
    ("observe", frozenset({"base", "agent"})),
    ("transport", frozenset({"base"})),
    ("driver", frozenset({"base", "agent", "observe", "transport"})),
    ("memory", frozenset({"base"})),
    ("rows", frozenset({"base", "memory"})),
    ("changelog", frozenset({"base", "memory", "rows"})),
    ("disk", frozenset({"base", "memory", "rows", "changelog"})),
    ("engine", frozenset({"base", "agent", "observe", "memory", "rows", "changelog", "disk"})),
    ("provider", frozenset({"base", "agent", "driver", "rows", "changelog", "engine"})),
    ("tools", frozenset({"base", "driver", "rows"})),
    ("", frozenset({"agent", "driver", "provider"})),  # the names that users write
)
_ROOT = "org.apache.spark.sql.millpond"


def _sources(repository: Path) -> Iterator[tuple[Path, str]]:
    """Yield each Scala file of the shim with the folder that it lies in."""
    main = repository / "jvm-shim/src/main"
    for layer in sorted(main.glob("scala*")):
        for path in sorted(layer.rglob("*.scala")):
            folder = path.parent.relative_to(layer).as_posix()
            if folder != "spark":  # a package of Spark's own, for what is private to Spark
                yield path, "" if folder == "." else folder


def test_the_arrows_point_upwards_in_the_list() -> None:
    for index, (package, imported) in enumerate(ARROWS):
        assert imported <= {name for name, _ in ARROWS[:index]}, package


def test_a_file_lies_in_the_folder_of_its_package(repository: Path) -> None:
    for path, folder in _sources(repository):
        clause = f"package {_ROOT}.{folder}".rstrip(".")
        assert re.findall(r"^package .*", path.read_text(), re.MULTILINE) == [clause], path


def test_each_package_imports_what_is_declared(repository: Path) -> None:
    allowed = dict(ARROWS)
    found: dict[str, set[str]] = {package: set() for package in allowed}
    wrong = []
    for path, package in _sources(repository):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.startswith("package "):
                continue
            # This matches a class of the root, a package, or, by a wildcard or by braces, anything.
            for name in re.findall(rf"(?:import {_ROOT}|{_ROOT}(?=\.[a-z]))\.(\w+|\{{)", line):
                target = name if name in allowed else ""
                found[package].add(target)
                if target not in allowed[package] | {package}:
                    wrong.append(f"{path.relative_to(repository)}:{number}: {line.strip()}")
    assert wrong == []
    assert found == {package: set(imported) for package, imported in ARROWS}
