"""Which options of `edit` and `restore` give saved values the columns that a changed job has
(pure).
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import InvalidInputError, UnsupportedError
from millpond.model.command_texts import option_words
from millpond.query.schemas import Families
from millpond.spark.column_changes import check_cast
from millpond.spark.column_types import bare_type, columns_of, is_struct, type_of, without_names
from millpond.spark.type_texts import type_json
from millpond.spark.types import parse_type, type_text, unique_names


class UnclearColumnsError(Exception):
    """Several columns have one name, and nothing tells which is which in the job.

    Spark names the columns of an aggregation by what they count, never by its argument: `count(*)`
    has a `count`, and `avg(v)` has a `sum` and a `count`.
    """


@dataclass(slots=True)
class _Options:
    add: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    change: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        words = [w for text in self.add for w in option_words("--add-column", text)]
        words += [w for text in self.drop for w in option_words("--drop-column", text)]
        words += [w for text in self.change for w in option_words("--change-column", text)]
        order = ",".join(self.order)
        return words + (option_words("--column-order", order) if order else [])


def column_options(
    saved: Families, job: Families, buffers: Sequence[str | None], *, last: str = ""
) -> tuple[list[str], list[str]]:
    """Return the options for each column family whose values have other columns, as text for a
    shell, and what they assume of columns of one name. Empty if the keys differ, or if no option
    can do it.

    Raises: UnclearColumnsError: a guess could give one aggregate the state of another.
    Args:
        saved, job: schemas of the savepoint, and of the job.
        buffers: of an aggregation: the values before the first row of the last columns.
        last: a column of Spark's own that stays behind new ones, if there is one.
    """
    found: list[str] = []
    assumed: list[str] = []
    for (store, name), new in sorted(job.items()):
        old = saved.get((store, name))
        if old is None:
            continue
        if _types(old.key) != _types(new.key):
            return [], []
        if _types(old.value) == _types(new.value):
            continue
        try:
            options = _fitted(json.loads(old.value), json.loads(new.value), buffers, last)
        except (InvalidInputError, UnsupportedError):
            return [], []
        place = option_words("--store", store) if len({s for s, _ in job}) > 1 else []
        place += (
            option_words("--column-family", name) if len(job) > len({s for s, _ in job}) else []
        )
        found.append(shlex.join(place + options.words()))
        assumed += options.assumed
    return found, assumed


def _types(schema: str) -> object:
    return without_names(columns_of(json.loads(schema)))


def _fitted(
    old: dict[str, Any], new: dict[str, Any], buffers: Sequence[str | None], last: str
) -> _Options:
    options = _Options()
    first_buffer = len(new["fields"]) - len(buffers)
    empty = dict(enumerate(buffers, first_buffer)) if buffers else {}
    _fit(old["fields"], new["fields"], "", empty, last, options)
    return options


def _fit(
    old: list[dict[str, Any]],
    new: list[dict[str, Any]],
    prefix: str,
    empty: Mapping[int, str | None],
    last: str,
    options: _Options,
) -> None:
    """Add the options for the columns of one struct."""
    options.assumed += _unclear(old, new, prefix)
    there = dict(zip(unique_names([str(one["name"]) for one in old]), old, strict=True))
    names = unique_names([str(one["name"]) for one in new])
    wanted = dict(zip(names, new, strict=True))
    order = [name for name in there if name in wanted]
    options.drop += [prefix + name for name in there if name not in wanted]
    for name in order:
        before, after = there[name]["type"], wanted[name]["type"]
        if bare_type(type_of(before)) == bare_type(type_of(after)):
            continue
        if is_struct(before) and is_struct(after):
            _fit(before["fields"], after["fields"], f"{prefix}{name}.", {}, "", options)
        else:
            check_cast(prefix + name, before, after)
            options.change.append(f"{prefix}{name}:{_text(after)}")
    behind = [order.pop()] if last and order and order[-1] == last else []
    for number, name in enumerate(names):
        if name not in there:
            value = empty.get(number)
            given = "" if value is None else f"={value}"
            options.add.append(f"{prefix}{name}:{_text(wanted[name]['type'])}{given}")
            order.append(name)
    if order + behind != names:
        options.order += [prefix + name for name in names]


def _unclear(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], prefix: str
) -> list[str]:
    """Return the names of which nothing says which column is which, as text, if all new columns
    stand behind the old ones: then most likely they are new aggregates.

    Columns of one name keep their order if there are as many as before, and no column that both
    have has moved.

    Raises: UnclearColumnsError: there are such names, and old columns are gone or have moved.
    """
    before, after = ([str(one["name"]) for one in columns] for columns in (old, new))
    counts, wanted = Counter(before), Counter(after)
    moved = [name for name in before if name in wanted] != [n for n in after if n in counts]
    unclear = [
        f"{prefix}{name}: {counts[name]} in the state, {wanted[name]} in the job"
        for name in wanted
        if name in counts and (counts[name] != wanted[name] or (moved and wanted[name] > 1))
    ]
    if unclear and list(new[: len(old)]) != list(old):
        raise UnclearColumnsError("; ".join(unclear))
    return unclear


def _text(kind: object) -> str:
    """Return the type as an option names it. Raises: InvalidInputError: no option can."""
    text = type_text(parse_type(kind))
    type_json(text)
    return text
