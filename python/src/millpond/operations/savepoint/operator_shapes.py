"""The columns that a stateful operator keeps, and how those of two operators differ (pure).

Spark names them in its schema files. At a start it compares the types of columns by their
positions, and no names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, FormatError
from millpond.model.partition_keys import TRANSFORM_WITH_STATE_OPERATORS
from millpond.query.image import operator_info_of
from millpond.query.schemas import families_of
from millpond.spark.column_types import Columns, columns_of, without_names


@dataclass(frozen=True, slots=True)
class FamilyShape:
    """The columns of one column family."""

    key: Columns
    value: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorShape:
    """What an operator keeps."""

    name: str
    families: Mapping[tuple[str, str], FamilyShape]  # by store and column family

    @property
    def variables(self) -> frozenset[str]:
        """The state variables of a transformWithState; empty for other operators."""
        if self.name not in TRANSFORM_WITH_STATE_OPERATORS:
            return frozenset()
        return frozenset(name for _, name in self.families if not name.startswith("$"))

    def exact(self) -> object:
        """Return what two operators have in common whose columns are the same."""
        return frozenset(self.families.items())

    def types(self) -> object:
        """Return what they have in common if only names of columns differ."""
        return frozenset(
            (place, without_names(of.key), without_names(of.value))
            for place, of in self.families.items()
        )

    def key(self) -> object:
        """Return the columns after which the operator groups: those of its shortest key."""
        return min((of.key for of in self.families.values()), key=len, default=())


def shape_of(texts: Mapping[str, bytes], operator: int) -> OperatorShape:
    """Return what an operator keeps.

    Args:
        texts: Spark's metadata and schema files, by key.
    Raises: FormatError: FORMAT_DAMAGED. UnsupportedError: FORMAT_TOO_NEW.
    """
    families = {
        place: FamilyShape(_columns(family.key, place), _columns(family.value, place))
        for place, family in families_of(texts, operator).items()
    }
    return OperatorShape(name=operator_info_of(texts, operator).name, families=families)


def silent_changes(saved: OperatorShape, job: OperatorShape, *, by_name: bool) -> tuple[str, ...]:
    """Return what changes although Spark starts the job without a word.

    Args:
        by_name: values are in Avro: Spark finds their fields by name.
    """
    told = []
    for place, before in saved.families.items():
        after, name = job.families.get(place), place[1]
        if after is None or name.startswith("$"):
            continue
        where = f"state variable {name}: " if name in saved.variables else ""
        parts = [("key", before.key, after.key)]
        if by_name:
            told += [f"{where}value: {text}" for text in _emptied(before.value, after.value)]
        else:
            parts.append(("value", before.value, after.value))
        for part, old, new in parts:
            if without_names(old) == without_names(new):
                told += [f"{where}{part}: {text}" for text in _renamed(old, new, "")]
    told = list(dict.fromkeys(told))
    gone = sorted(saved.variables - job.variables) if job.variables else []
    for name in gone:
        told.append(
            f"state variable {name}: the job has it no more. Spark keeps its rows: they take room,"
            " and are there again if a later job has the variable."
            f" handle.deleteIfExists({name!r}) in init deletes them"
        )
    return tuple(told)


def _renamed(old: Columns, new: Columns, path: str) -> Iterator[str]:
    """Yield how the names of columns differ. Types are equal."""
    pairs = [(a, b) for (a, _), (b, _) in zip(old, new, strict=True) if a != b]
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    if pairs and set(before) == set(after):
        names = ", ".join(path + name for name in sorted(before))
        yield (
            f"{names} have changed places. Spark compares types alone: each gets what another had"
        )
    else:
        for a, b in pairs:
            yield (
                f"{path}{a} is {path}{b} in the job. Spark compares types alone: {path}{b} gets"
                f" what {path}{a} had"
            )
    for (_, kind), (name, other) in zip(old, new, strict=True):
        yield from _nested(kind, other, f"{path}{name}.")


def _emptied(old: Columns, new: Columns) -> Iterator[str]:
    """Yield which fields may have got another name, where Spark finds them by name."""
    before, after = dict(old), dict(new)
    gone = sorted(before.keys() - after.keys())
    added = sorted(after.keys() - before.keys())
    if gone and added:
        yield (
            f"the job has {', '.join(added)} and not {', '.join(gone)}. Spark finds fields by name"
            f" in Avro: {', '.join(added)} begins as null, and the values of {', '.join(gone)} are"
            " lost"
        )


def _nested(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, str):
        return
    if old[0] == "struct":
        yield from _renamed(old[1], new[1], path)
    else:
        for a, b in zip(old[1:], new[1:], strict=True):
            yield from _nested(a, b, path)


def _columns(text: str, place: tuple[str, str]) -> Columns:
    try:
        return columns_of(json.loads(text))
    except (ValueError, KeyError, TypeError) as e:
        store, family = place
        raise FormatError(
            f"store {store!r}, column family {family!r}: no schema that Spark writes",
            kind=ErrorKind.FORMAT_DAMAGED,
        ) from e
