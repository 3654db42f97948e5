"""Decides which rows of an operator's stores belong to the key that a user wants erased.

A user names columns of the key by which Spark groups, joins or deduplicates. Each column family
holds that key in its own way: with more columns, inside a struct, under other names. All of them
keep its columns in one order, by which they are found.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.model.command_texts import option_words
from millpond.model.json_fields import ColumnFamily
from millpond.model.partition_keys import PartitionKeyRule
from millpond.query.image import Image, operator_info
from millpond.rows.arrow_types import struct_type
from millpond.spark.state_schemas import FamilySchema
from millpond.spark.types import Struct
from millpond.state.codec import check_supported, decode_keys
from millpond.state.key_columns import first_name, given_twice, leaves, path_of
from millpond.state.partitioning import partition_columns
from millpond.state.selection import every_rule
from millpond.state.tables import equals, key_value

Mask = npt.NDArray[np.bool_]
Shown = Mapping[tuple[str, str], Mapping[str, str]]
"""Names of columns for the user, by store and column family, and by stored names."""


class Matcher:
    """Tells the rows of a key from others.

    Args:
        image: of the query: Spark's schemas.
        operator: number.
        key: columns of the grouping key and their values; some of them are enough. Nested ones with
            dots, or as mappings.
        shown: of the operator's column families; those without such names may be left out.
    Raises: InvalidInputError: INVALID_ARGUMENT: no such column, a value of another type.
        UnsupportedError: the operator has no keys, or their layout is not known.
    """

    def __init__(
        self,
        image: Image,
        operator: int,
        key: Mapping[str, object],
        shown: Shown,
    ) -> None:
        info = operator_info(image, operator)
        self._schemas: dict[tuple[str, str], tuple[FamilySchema, PartitionKeyRule]] = {}
        for store in info.stores:
            for name, found in every_rule(image, operator, info, store).items():
                self._schemas[store, name] = found
        self.operator, self.shown = operator, shown
        self._wanted = self._places(key, shown)
        self._scalars: dict[tuple[str, str], list[tuple[list[str], Any]]] = {}

    def mask(self, store: str, family: ColumnFamily, keys: Sequence[bytes]) -> Mask:
        """Return a bool for each key: whether its row is to go.

        Args:
            keys: physical, without slot and column family.
        Raises: UnsupportedError: nothing tells what the keys say.
        """
        found = self._schemas.get((store, family.name))
        if found is None:
            raise UnsupportedError(
                f"nothing describes the keys of column family {family.name!r}",
                hint="Restore the files of the state's schema from a copy.",
            )
        schema, rule = found
        check_supported(family, schema)
        decoded = decode_keys(keys, schema, place_bytes=0, encoding=family.encoding)
        columns, kind = partition_columns(decoded, schema.key, rule)
        result: Mask = np.ones(len(keys), np.bool_)
        for path, scalar in self._values((store, family.name), kind):
            column = pc.struct_field(columns, path)
            result &= np.array(equals(column, scalar).to_pylist(), np.bool_)
        return result

    def _values(self, place: tuple[str, str], kind: Struct) -> list[tuple[list[str], Any]]:
        """Return the wanted columns of a family: path, value of the column's type."""
        if place not in self._scalars:
            found = []
            for (number, rest), value in self._wanted.items():
                name = ".".join((kind.distinct_names[number], *rest))
                scalar = key_value(kind, name, value, {})  # raises where there is no such path
                found.append((path_of(struct_type(kind), name) or [], scalar))
            self._scalars[place] = found
        return self._scalars[place]

    def _places(
        self, key: Mapping[str, object], shown: Shown
    ) -> dict[tuple[int, tuple[str, ...]], object]:
        """Return the wanted values by the number of the column, and the names inside it."""
        offered: list[str] = []
        for place, (schema, rule) in self._schemas.items():
            if rule.kind in ("none", "unknown") or place[1].startswith("$"):
                continue
            empty = pa.array([], struct_type(schema.key))
            kind = partition_columns(empty, schema.key, rule)[1]
            names, columns = shown.get(place, {}), kind.distinct_names
            numbers = {column: n for n, column in enumerate(columns)}
            numbers |= {names.get(column, column): n for n, column in enumerate(columns)}
            offered = offered or [names.get(column, column) for column in columns]
            split = [(first_name(name, numbers), value) for name, value in leaves(key)]
            if not split or any(name[0] not in numbers for name, _ in split):
                continue
            wanted: dict[tuple[int, tuple[str, ...]], object] = {}
            for (top, rest), value in split:
                inside = (rest,) if rest else ()
                stored = ".".join((columns[numbers[top]], *inside))
                key_value(kind, stored, value, names)  # raises if it is of another type
                if (numbers[top], inside) in wanted:
                    raise given_twice(".".join((top, *inside)))
                wanted[numbers[top], inside] = value
            return wanted
        if not offered:
            raise UnsupportedError(
                "the operator has no key by which its rows could be found",
                hint="`millpond state list` shows the operators and their keys.",
            )
        given = shlex.join(
            word for name in offered for word in option_words("--key", f"{name}=...")
        )
        what = f"no key column {', '.join(map(repr, key))}" if key else "a key is needed"
        raise InvalidInputError(
            f"{what}; there are: {', '.join(offered)}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=f"Give some of them: {given}",
        )
