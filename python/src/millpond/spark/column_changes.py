"""Changes to the columns of values: what becomes of a schema of Spark, and which new column comes
from which old one. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.spark.column_types import is_struct
from millpond.spark.type_texts import field_json, type_json
from millpond.spark.types import unique_names

_INTEGERS = {"byte", "short", "integer", "long"}
_NUMBERS = _INTEGERS | {"float", "double"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """Other columns for the values of one column family.

    Columns have the names that `millpond state list` shows. A field of a struct is named with
    dots: `groupState.total`. Keys have the columns that they have.

    Attributes:
        add: name -> type and value, such as `{"total": ("long", 0)}`. Every row gets the value. A
            text stands for the value that it names; None is null. A new column comes last; in a
            join it comes before Spark's own column `matched`.
        drop: columns that values have no more.
        rename: old name -> new name.
        change_type: name -> type. No value may change: numbers become other numbers if all fit.
        order: the names of all columns, as they are to be; empty: the order stays.
    """

    add: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    drop: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    change_type: Mapping[str, str] = field(default_factory=dict)
    order: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.add or self.drop or self.rename or self.change_type or self.order)

    @property
    def old_names(self) -> list[str]:
        """The columns that must be there."""
        return list(dict.fromkeys([*self.drop, *self.rename, *self.change_type]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the new values."""

    name: str  # with dots
    source: int | None  # number of the old column; None: it is new
    inner: tuple[Column, ...] | None = None  # of a struct in which columns change
    value: object = None  # of a new column


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedColumns:
    """What becomes of the columns of a schema."""

    schema: str  # the new one, in Spark's JSON
    columns: tuple[Column, ...]


def changed_columns(
    schema: str, changes: ColumnChanges, *, key: Collection[str], last: str = ""
) -> ChangedColumns:
    """Return the new schema of values, and what each of its columns comes from.

    Args:
        schema: of the values, in Spark's JSON.
        changes: at least one.
        key: the columns of the key, for messages.
        last: a column of Spark's own that stays behind new ones, if there is one.
    Raises: InvalidInputError: INVALID_ARGUMENT.
    """
    root = json.loads(schema)
    structs = _structs(root["fields"], "")
    known = {path for path, fields in structs.items() for path in _paths(fields, path)}
    for name in changes.old_names:
        if name not in known:
            raise _unknown(name, structs[""], key)
    columns = _changed(root["fields"], "", _Wanted(changes, structs), last)
    fields = [json_field for json_field, _ in columns]
    if not fields:
        raise InvalidInputError(
            "no column would be left",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="To drop the whole state of an operator: restore with --drop-operator.",
        )
    return ChangedColumns(
        schema=json.dumps({**root, "fields": fields}, separators=(",", ":")),
        columns=tuple(column for _, column in columns),
    )


def _structs(fields: list[dict[str, Any]], prefix: str) -> dict[str, list[dict[str, Any]]]:
    """Return the columns of a struct, and of all structs in it, by name with dots."""
    found = {prefix: fields}
    for path, one in zip(_paths(fields, prefix), fields, strict=True):
        if is_struct(one["type"]):
            found |= _structs(one["type"]["fields"], path)
    return found


def _paths(fields: Iterable[Mapping[str, Any]], prefix: str) -> list[str]:
    return [_below(prefix, name) for name in unique_names([str(f["name"]) for f in fields])]


def _below(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


class _Wanted:
    """The changes, by the struct in which they are."""

    def __init__(self, changes: ColumnChanges, structs: Mapping[str, object]) -> None:
        self.changes = changes
        self._structs = structs

    def parent(self, path: str) -> str:
        """Return the struct that has, or gets, the column."""
        above = [s for s in self._structs if s and path.startswith(s + ".")]
        return max(above, key=len, default="")

    def added(self, prefix: str) -> list[str]:
        return [path for path in self.changes.add if self.parent(path) == prefix]

    def order(self, prefix: str) -> list[str]:
        return [path for path in self.changes.order if self.parent(path) == prefix]

    def within(self, path: str) -> bool:
        """Whether something changes in the struct `path`."""
        mine = (*self.changes.add, *self.changes.old_names, *self.changes.order)
        return any(other.startswith(path + ".") for other in mine)


def _changed(
    fields: list[dict[str, Any]], prefix: str, wanted: _Wanted, last: str
) -> list[tuple[dict[str, Any], Column]]:
    changes = wanted.changes
    kept: list[tuple[str, dict[str, Any], Column]] = []
    for number, (path, one) in enumerate(zip(_paths(fields, prefix), fields, strict=True)):
        inner, kind = None, one["type"]
        if path in changes.drop:
            if path in {*changes.rename, *changes.change_type} or (
                is_struct(kind) and wanted.within(path)
            ):
                raise InvalidInputError(
                    f"column {path!r} is to be dropped, and to be changed",
                    kind=ErrorKind.INVALID_ARGUMENT,
                    hint="Leave one of the two out.",
                )
            continue
        if path in changes.change_type:
            kind = type_json(changes.change_type[path])
            check_cast(path, one["type"], kind)
        elif is_struct(kind) and wanted.within(path):
            below = _changed(kind["fields"], path, wanted, "")
            kind = {**kind, "fields": [json_field for json_field, _ in below]}
            inner = tuple(column for _, column in below)
        name, new_path = str(one["name"]), path
        if path in changes.rename:
            name = changes.rename[path]
            new_path = _below(prefix, name)
        column = Column(name=new_path, source=number, inner=inner)
        kept.append((new_path, {**one, "name": name, "type": kind}, column))
    behind = [kept.pop()] if last and kept and kept[-1][1]["name"] == last else []
    for path in wanted.added(prefix):
        kind, value = changes.add[path]
        name = path[len(prefix) + 1 :] if prefix else path
        added = field_json(name, type_json(kind))
        kept.append((path, added, Column(name=path, source=None, value=value)))
    kept += behind
    names = [path for path, _, _ in kept]
    if twice := [path for path in names if names.count(path) > 1]:
        raise InvalidInputError(
            f"two columns would be called {twice[0]!r}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Choose another name: Spark compares the order and the types of columns.",
        )
    if order := wanted.order(prefix):
        if sorted(order) != sorted(names):
            raise InvalidInputError(
                f"the order names {', '.join(order)}; the columns are {', '.join(names)}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Name every column once, by its new name.",
            )
        kept.sort(key=lambda one: order.index(one[0]))
    return [(json_field, column) for _, json_field, column in kept]


def check_cast(path: str, old: object, new: object) -> None:
    """Raise InvalidInputError: INVALID_ARGUMENT if a column cannot change its type so.

    Args:
        path: the column, for messages.
        old, new: types, in Spark's JSON.
    """
    if old == new or (_is_number(old) and _is_number(new)):
        return
    if isinstance(old, str) and old in _INTEGERS and new == "string":
        return
    raise InvalidInputError(
        f"column {path!r} is {_text(old)}, which cannot become {_text(new)}: only numbers change"
        " their type, to other numbers, and integers to text",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="Add a column of the new type, fill it with --function, and drop the old one.",
    )


def _is_number(kind: object) -> bool:
    return isinstance(kind, str) and (kind in _NUMBERS or kind.startswith("decimal"))


def _text(kind: object) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def _unknown(name: str, fields: list[dict[str, Any]], key: Collection[str]) -> InvalidInputError:
    there = ", ".join(_paths(fields, "")) or "none"
    if name in key:
        return InvalidInputError(
            f"column {name!r} is part of the key: the columns of keys cannot change, because the"
            " value of an old key does not tell the values of new keys",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=KEY_ADVICE,
        )
    return InvalidInputError(
        f"values have no column {name!r}; they have: {there}",
        kind=ErrorKind.INVALID_ARGUMENT,
        hint="`millpond state list` shows the columns of keys and values.",
    )


KEY_ADVICE = (
    "Make the state of the new keys from the history: millpond savepoint bootstrap. Or start the"
    " job with a checkpointLocation of its own beside the old one, until it has seen enough."
)
