"""Compares the two schemas in a message of Spark, column by column (pure).

Spark writes a schema as `StructType(StructField(k,StringType,true),..)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millpond.spark.types import unique_names

# The parameters of Spark's errors about schemas: the saved schema, and the job's.
_PAIRS = (
    ("key", "storedKeySchema", "newKeySchema"),
    ("value", "storedValueSchema", "newValueSchema"),
)
_STRUCT, _FIELD = "StructType(", "StructField("


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDiff:
    """One column that differs."""

    part: str  # key or value
    column: str  # its path, with dots, if it is nested
    saved: str | None  # its saved type, as Spark names it; None: it was not there
    job: str | None  # its type in the job; None: it is not there

    def __str__(self) -> str:
        if self.saved is None:
            return f"{self.part}: + {self.column} {self.job}"
        if self.job is None:
            return f"{self.part}: - {self.column} {self.saved}"
        return f"{self.part}: {self.column} {self.saved} -> {self.job}"


def schema_diff(parameters: Mapping[str, str]) -> tuple[ColumnDiff, ...]:
    """Return the columns that differ between the two schemas of Spark's error.

    Empty if the error is not about schemas.

    Args:
        parameters: the parameters of the error, by name.
    """
    found: list[ColumnDiff] = []
    for part, stored, new in _PAIRS:
        if stored in parameters and new in parameters:
            saved, job = (_columns(parameters[name]) for name in (stored, new))
            if saved is not None and job is not None:
                found += _compare(part, "", saved, job)
    return tuple(found)


def _compare(
    part: str, path: str, saved: Mapping[str, str], job: Mapping[str, str]
) -> Iterator[ColumnDiff]:
    for column in dict.fromkeys([*saved, *job]):
        before, after = saved.get(column), job.get(column)
        if before == after:
            continue
        inner = (_columns(before or ""), _columns(after or ""))
        if inner[0] is not None and inner[1] is not None:
            yield from _compare(part, f"{path}{column}.", inner[0], inner[1])
        else:
            yield ColumnDiff(
                part=part, column=path + column, saved=_named(before), job=_named(after)
            )


def _named(kind: str | None) -> str | None:
    """Return a short name of a type: without Spark's suffix `Type`, a struct without its fields."""
    if kind is None:
        return None
    return "struct" if kind.startswith(_STRUCT) else kind.replace("Type", "").lower()


def _columns(schema: str) -> dict[str, str] | None:
    """Return the types of a struct's columns, by name; None if `schema` is no struct of Spark.

    If a name comes twice, the second has a number.
    """
    if not (schema.startswith(_STRUCT) and schema.endswith(")")):
        return None
    names, types = [], []
    for field in _split(schema[len(_STRUCT) : -1]):
        if not (field.startswith(_FIELD) and field.endswith(")")):
            return None
        parts = _split(field[len(_FIELD) : -1])
        if len(parts) < 3:
            return None
        # Like Spark, this does not compare whether the column may be null.
        names.append(",".join(parts[:-2]))
        types.append(parts[-2])
    return dict(zip(unique_names(names), types, strict=True))


def _split(text: str) -> Sequence[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text else []
