"""Every raised error has the class that the table gives its kind."""

from __future__ import annotations

import ast
import re
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
            # The root class only carries a kind to the place that looks up its hint. Nothing raises
            # it.
            if cls not in (expected, "MillpondError"):
                wrong.append(
                    f"{path.relative_to(repository)}:{line}: {cls} of {kind}, which is a {expected}"
                )
    assert found > 50
    assert wrong == []


def raised_in_python(path: Path) -> Iterator[str]:
    """Yield each kind that a file makes an error of.

    That is each `ErrorKind.X` with which nothing is compared, and the kind of a class that is
    called without one.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    comparisons = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    compared = {id(part) for comparison in comparisons for part in ast.walk(comparison)}
    for node in ast.walk(tree):
        if id(node) in compared:
            continue
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "ErrorKind"
        ):
            yield node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            cls = getattr(errors, node.func.id, None)
            named = any(keyword.arg == "kind" for keyword in node.keywords)
            if isinstance(cls, type) and issubclass(cls, errors.MillpondError) and not named:
                yield cls.default_kind.value


def raised_in_scala(path: Path) -> Iterator[str]:
    """Yield each kind in a Scala file that no error's kind is compared with."""
    for match in re.finditer(
        r'(\bkind [!=]= )?"([A-Z]+(?:_[A-Z]+)*)"', path.read_text(encoding="utf-8")
    ):
        if not match[1]:
            yield match[2]


def test_every_kind_is_raised_somewhere(repository: Path) -> None:
    python = (repository / "python/src/millpond").rglob("*.py")
    raised = {
        kind for path in python if path.parent.name != "errors" for kind in raised_in_python(path)
    }
    scala = (repository / "jvm-shim/src/main").rglob("*.scala")
    raised |= {kind for path in scala for kind in raised_in_scala(path)}
    assert {kind.value for kind in ErrorKind} - raised == set()


# Users do not reach these by a command: their faults are those of Millpond or of the protocol.
_INNER = ("agent", "format", "local", "model", "store", "testing")


def test_a_wrong_argument_always_has_a_hint_of_its_own(repository: Path) -> None:
    """The default of INVALID_ARGUMENT cannot know what the argument takes."""
    root = repository / "python/src/millpond"
    without = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            kind = given.get("kind")
            wrong = kind is None or (
                isinstance(kind, ast.Attribute) and kind.attr == "INVALID_ARGUMENT"
            )
            if node.func.id == "InvalidInputError" and wrong and "hint" not in given:
                without.append(f"{path.relative_to(root)}:{node.lineno}")
    inner = (*(f"{room}/" for room in _INNER), "storage/keys.py", "rows/encode.py")
    assert [place for place in without if not place.startswith(inner)] == []
