"""The column families of the simulated operators: their schemas, their keys, and where Spark would put each key."""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from integration.harness import Row, Schema

MOST_PARTITIONS = 4  # every number of partitions that is used divides it
Order = Callable[[Row], tuple[Any, ...]]


@dataclass(frozen=True)
class Kind:
    """One column family: its schema, its keys, and what is known of their order."""

    name: str
    schema: Schema
    candidates: tuple[Row, ...]
    hashed: Callable[[Row], Row]  # what Spark's shuffle hashes of a key
    hashed_schema: str
    internal: bool = False
    prefix: Callable[[Row], Row] | None = None  # the row that a prefix scan takes to find this key
    order: Order | None = None  # the sort key of a scan, where it has one
    ranged: bool = True  # whether a range may span prefixes
    places: list[int] = field(default_factory=list)  # of each candidate: its hash modulo MOST_PARTITIONS

    def keys(self, partition: int, partitions: int) -> list[Row]:
        """The keys that live in a partition."""
        return [k for k, p in zip(self.candidates, self.places, strict=True) if p % partitions == partition]

    def value(self, chance: random.Random, large: bool) -> Row:
        """A value of the schema."""
        length = chance.choice((0, 1, 3, 9, 40, *((700, 2500) if large else ())))
        text = base64.b64encode(chance.randbytes(length)).decode()
        columns: list[Row] = []
        for column in self.schema.value.split(", "):
            what = column.split(" ")[1]
            columns.append({"string": text, "bigint": chance.randint(-9, 9), "boolean": length > 3, "void": None}[what])
        return columns


@dataclass(frozen=True)
class Shape:
    """A stateful operator, as far as its store depends on it."""

    name: str
    operator: str
    schema: Schema  # of the default column family
    kinds: dict[str, Kind]
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def has_families(self) -> bool:
        return self.schema.use_cf


def _order(*columns: Any) -> tuple[Any, ...]:
    """Sort key of ordering columns as Spark encodes them: nulls last, -0.0 before 0.0."""
    return tuple(
        (c is None, 0 if c is None else c, math.copysign(1, c) if isinstance(c, float) else 0) for c in columns
    )


_TEXTS = ["", "a", "b", "cc", "d", "e", "x" * 40, None]


def _transform() -> list[Kind]:
    grouped: dict[str, Any] = {"hashed_schema": "g string"}
    return [
        Kind("value", Schema("g string", "v string, w bigint"), tuple([t] for t in _TEXTS), lambda k: k, **grouped),
        Kind("list", Schema("g string", "v string", multi=True), tuple([t] for t in _TEXTS), lambda k: k, **grouped),
        Kind(
            "map",
            Schema("key struct<g: string>, userKey struct<u: bigint>", "v string", {"type": "prefix", "columns": 1}),
            tuple([[t], [n]] for t in _TEXTS for n in (-1, 7)),
            lambda k: k[0],
            prefix=lambda k: [k[0]],
            **grouped,
        ),
        Kind(
            "$ttl_list",
            Schema(
                "expirationMs bigint, elementKey struct<g: string>", "empty void", {"type": "range", "ordinals": [0]}
            ),
            tuple([n, [t]] for t in _TEXTS[:5] for n in (0, 5)),
            lambda k: k[1],
            internal=True,
            prefix=lambda k: [k[0]],
            order=lambda k: _order(k[0]),
            **grouped,
        ),
        Kind(
            "order",
            Schema("t bigint, k string, d double", "v string", {"type": "range", "ordinals": [2, 0]}),
            tuple([n, "k", d] for d in (-1.5, 0.0, None) for n in (-300, 0, 2**40)),
            lambda k: k,
            "t bigint, k string, d double",
            prefix=lambda k: [k[2], k[0]],
            order=lambda k: _order(k[2], k[0]),
        ),
        Kind(
            "lists",
            Schema("a string, b bigint, c string", "v string", {"type": "prefix", "columns": 2}, multi=True),
            tuple([a, 1, c] for a in ("a", None) for c in _TEXTS[:5]),
            lambda k: k,
            "a string, b bigint, c string",
            prefix=lambda k: k[:2],
        ),
    ]


def _join() -> list[Kind]:
    keyed: dict[str, Any] = {"hashed": lambda k: k[:1], "hashed_schema": "f string"}
    timed = tuple([t, n] for t in _TEXTS[:5] for n in (-5, 0, 2**50))
    return [
        Kind(
            "left-keyWithTsToValues",
            Schema("f string, ts bigint not null", "v string, m boolean", {"type": "ts_postfix"}, multi=True),
            timed,
            prefix=lambda k: k[:1],
            order=lambda k: (k[1],),
            ranged=False,
            **keyed,
        ),
        Kind(
            "left-tsWithKey",
            Schema("f string, ts bigint not null", "empty void", {"type": "ts_prefix"}, multi=True),
            timed,
            internal=True,
            order=lambda k: (k[1],),
            **keyed,
        ),
        Kind(
            "right-keyWithIndexToValue",
            Schema("f string, index bigint", "v string, m boolean"),
            tuple([t, n] for t in _TEXTS[:6] for n in (0, 1)),
            **keyed,
        ),
        Kind(
            "right-keyToNumValues", Schema("f string", "n bigint"), tuple([t] for t in _TEXTS), internal=True, **keyed
        ),
    ]


def _plain() -> list[Kind]:
    schema = Schema("g string", "v string, w bigint")
    return [Kind("default", schema, tuple([t] for t in _TEXTS), lambda k: k, "g string")]


def shapes(partitions_of: Callable[[list[Row], str], list[int]]) -> dict[str, Shape]:
    """All shapes. `partitions_of`: hash rows of a schema modulo `MOST_PARTITIONS`."""
    with_families = Schema("g string", "value binary", use_cf=True)
    made = {
        "transform": Shape(
            "transform",
            "transformWithStateExec",
            with_families,
            {k.name: k for k in _transform()},
            {
                "value": "ValueState",
                "list": "ListState",
                "map": "MapState",
                "order": "ValueState",
                "lists": "ListState",
            },
        ),
        "join": Shape("join", "symmetricHashJoin", with_families, {k.name: k for k in _join()}),
        "plain": Shape(
            "plain", "stateStoreSave", Schema("g string", "v string, w bigint"), {k.name: k for k in _plain()}
        ),
    }
    for shape in made.values():
        for kind in shape.kinds.values():
            kind.places.extend(partitions_of([kind.hashed(k) for k in kind.candidates], kind.hashed_schema))
    return made
