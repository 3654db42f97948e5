"""The error tree: its shape and its one table. It survives pickling."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from millpond import errors
from millpond.errors import ERRORS, ErrorKind, MillpondError, error
from millpond.reference import errors_json, errors_markdown
from tests.conftest import Golden

TREE = {
    "MillpondError": "Exception",
    "NotFoundError": "MillpondError",
    "InvalidInputError": "MillpondError",
    "ConflictError": "MillpondError",
    "UnavailableError": "MillpondError",
    "FormatError": "MillpondError",
    "AgentError": "MillpondError",
    "UnsupportedError": "MillpondError",
    "InternalError": "MillpondError",
}

CLASSES = [
    cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, MillpondError)
]


def test_shape_of_the_tree() -> None:
    assert {cls.__name__: cls.__bases__[0].__name__ for cls in CLASSES} == TREE
    assert issubclass(errors.NotFoundError, LookupError)
    assert issubclass(errors.InvalidInputError, ValueError)
    # a KeyError would print quotes
    assert str(errors.NotFoundError("plain", hint="Look.")) == "plain. Hint: Look."


def test_every_kind_has_a_row() -> None:
    assert list(ERRORS) == list(ErrorKind)
    for kind, info in ERRORS.items():
        assert kind.value == kind.name == str(kind)
        assert info.meaning.endswith(".") and "\n" not in info.meaning
        assert (
            info.hint.endswith(".")
            and "\n" not in info.hint
            and "|" not in info.hint + info.meaning
        )


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_default_kind_belongs_to_the_class(cls: type[MillpondError]) -> None:
    e = cls("message")
    expected = errors.InternalError if cls is MillpondError else cls
    assert ERRORS[e.kind].error_class is expected
    assert e.hint == ERRORS[e.kind].hint


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_pickle(kind: ErrorKind) -> None:
    e = error(kind, "what happened", hint="run this")
    copy = pickle.loads(pickle.dumps(e))
    assert type(copy) is type(e) is ERRORS[kind].error_class
    assert (str(copy), copy.message, copy.kind, copy.hint) == (
        "what happened. Hint: run this",
        "what happened",
        kind,
        "run this",
    )


def test_json_for_the_jar() -> None:
    table = json.loads(errors_json())
    assert set(table) == {kind.value for kind in ErrorKind}
    assert table["UNSAFE_PATH"]["class"] == "FormatError"
    assert all(set(row) == {"class", "meaning", "hint"} for row in table.values())


def test_kinds_stay(golden: Golden, repository: Path) -> None:
    """Alerts and user code match on the kinds.

    A new line in the file is fine. A changed or removed line breaks somebody. So `REMOVED` tells
    the documentation what stands for the old kind.
    """
    assert not errors.REMOVED.keys() & {kind.value for kind in ErrorKind}
    content = "".join(
        f"{kind.value} {ERRORS[kind].error_class.__name__}\n" for kind in sorted(ErrorKind)
    )
    golden.check(repository / "tests/golden/v1/error-kinds.txt", content.encode())


def test_documentation_is_up_to_date(golden: Golden, repository: Path) -> None:
    golden.check(repository / "docs/reference/errors.md", errors_markdown().encode())
