"""Wherever an error is raised, its class is the one that the table gives its kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from millpond import errors
from millpond.errors import ERRORS, ErrorKind


def uses(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, class and kind of every `SomeError(..., kind=ErrorKind.X)`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        cls = getattr(errors, node.func.id, None)
        if not (isinstance(cls, type) and issubclass(cls, errors.MillpondError)):
            continue
        for keyword in node.keywords:
            if keyword.arg == "kind" and isinstance(keyword.value, ast.Attribute):
                yield node.lineno, node.func.id, keyword.value.attr


def test_classes_fit_kinds(repository: Path) -> None:
    wrong = []
    found = 0
    for path in sorted((repository / "python/src/millpond").rglob("*.py")):
        for line, cls, kind in uses(path):
            found += 1
            expected = ERRORS[ErrorKind[kind]].error_class.__name__
            # The root class only carries a kind to where its hint is looked up; it is never raised.
            if cls not in (expected, "MillpondError"):
                wrong.append(f"{path.relative_to(repository)}:{line}: {cls} of {kind}, which is a {expected}")
    assert found > 50
    assert wrong == []
