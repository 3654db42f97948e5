"""Two schemas as Spark's messages write them, `StructType(StructField(k,StringType,true),..)`, compared column by column (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Spark's parameters of its errors about schemas: what was saved, what the job has.
_PAIRS = (
    ("key", "storedKeySchema", "newKeySchema"),
    ("value", "storedValueSchema", "newValueSchema"),
)
_STRUCT, _FIELD = "StructType(", "StructField("


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDiff:
    """One column that the two do not share. saved, job: its type there, as Spark names it; None: it is not there."""

    part: str  # key or value
    column: str  # of a nested one the path, with dots
    saved: str | None
    job: str | None

    def __str__(self) -> str:
        if self.saved is None:
            return f"{self.part}: + {self.column} {self.job}"
        if self.job is None:
            return f"{self.part}: - {self.column} {self.saved}"
        return f"{self.part}: {self.column} {self.saved} -> {self.job}"


def schema_diff(parameters: Mapping[str, str]) -> tuple[ColumnDiff, ...]:
    """Return what differs between the schemas in the parameters of Spark's error; nothing if it is about no schemas."""
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
    """A type without the suffix that all of Spark's have, and without what is nested in it: that is long."""
    if kind is None:
        return None
    return "struct" if kind.startswith(_STRUCT) else kind.replace("Type", "").lower()


def _columns(schema: str) -> dict[str, str] | None:
    """Name to type of the columns; None: it is no struct, or not written as Spark writes one."""
    if not (schema.startswith(_STRUCT) and schema.endswith(")")):
        return None
    columns = {}
    for field in _split(schema[len(_STRUCT) : -1]):
        if not (field.startswith(_FIELD) and field.endswith(")")):
            return None
        parts = _split(field[len(_FIELD) : -1])
        if len(parts) < 3:
            return None
        # Whether it may be null is not compared: Spark does not.
        columns[",".join(parts[:-2])] = parts[-2]
    return columns


def _split(text: str) -> Sequence[str]:
    """The parts between commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text else []
