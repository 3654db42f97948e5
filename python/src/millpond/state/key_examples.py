"""Tells users what a key is: its columns with their types, and an example."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from millpond.model.command_texts import option_words
from millpond.spark.types import Atom, Decimal, SparkType, Struct, type_text

_EXAMPLES = {
    "boolean": True,
    "binary": "YQ==",
    "float": 1.5,
    "double": 1.5,
    "date": "2026-01-31",
    "timestamp": "2026-01-31T12:00:00+00:00",
    "timestamp_ntz": "2026-01-31T12:00:00",
    "time": "12:00:00",
}


def example(kind: SparkType) -> Any:
    """Return a value of a type as JSON has it."""
    if isinstance(kind, Struct):
        return {name: example(inner) for name, inner in kind.columns}
    if isinstance(kind, Decimal):
        return "1"
    if isinstance(kind, Atom):
        return (
            "a"
            if kind.name.startswith(("string", "char", "varchar"))
            else _EXAMPLES.get(kind.name, 1)
        )
    return []


def columns_text(key: Struct, shown: Mapping[str, str]) -> str:
    """Return the columns of a key with their types.

    Args:
        shown: names of columns for the user, by stored names.
    """
    told = (f"{shown.get(name, name)} {type_text(kind)}" for name, kind in key.columns)
    return ", ".join(told) or "no columns"


def key_hint(key: Struct, shown: Mapping[str, str]) -> str:
    """Return what a key is, with an example for the command line."""
    given = (f"{shown.get(name, name)}={_text(value)}" for name, value in _leaves(key, ""))
    told = shlex.join(word for one in given for word in option_words("--key", one))
    return f"A key here is: {columns_text(key, shown)}. For example {told}"


def _leaves(columns: Struct, outer: str) -> Iterator[tuple[str, Any]]:
    for name, kind in columns.columns:
        if isinstance(kind, Struct):
            yield from _leaves(kind, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", example(kind)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
