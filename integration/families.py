"""The column families of two stateful operators: schemas, test keys, and their order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from integration.harness import Row, Schema

Order = Callable[[Row], tuple[Any, ...]]


@dataclass(frozen=True, repr=False)
class Kind:
    """One column family: its schema, the keys that a test uses, and their order."""

    name: str
    schema: Schema
    candidates: tuple[Row, ...]
    hashed: Callable[[Row], Row]  # the part of a key that Spark's shuffle hashes
    hashed_schema: str
    internal: bool = False
    prefix: Callable[[Row], Row] | None = None  # the row that a prefix scan takes to find this key
    order: Order | None = None  # the sort key of a scan; None: the scan has no order
    ranged: bool = True  # whether a range may span prefixes

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pool:
    """The values for columns of keys."""

    texts: tuple[str | None, ...]
    users: tuple[int | None, ...]
    expirations: tuple[int, ...]
    doubles: tuple[float | None, ...]
    longs: tuple[int | None, ...]
    seconds: tuple[int | None, ...]
    times: tuple[int, ...]
    indexes: tuple[int, ...]
    some: int = 100  # the number of texts for keys that have other columns too


T = TypeVar("T", bound=Kind)


def ascending(*columns: Any) -> tuple[Any, ...]:
    """Return the sort key of ordering columns, as Spark encodes them.

    Nulls are last, and -0.0 is before 0.0.
    """
    return tuple(
        (c is None, 0 if c is None else c, math.copysign(1, c) if isinstance(c, float) else 0)
        for c in columns
    )


def of_transform(make: type[T], pool: Pool) -> list[T]:
    """Return families of `transformWithState`: whole keys, lists, maps, TTL, any order."""
    grouped: dict[str, Any] = {"hashed_schema": "g string"}
    texts, some = pool.texts, pool.texts[: pool.some]
    return [
        make(
            "value",
            Schema("g string", "v string, w bigint"),
            tuple([t] for t in texts),
            lambda k: k,
            **grouped,
        ),
        make(
            "list",
            Schema("g string", "v string", multi=True),
            tuple([t] for t in texts),
            lambda k: k,
            **grouped,
        ),
        make(
            "map",
            Schema(
                "key struct<g: string>, userKey struct<u: bigint>",
                "v string",
                {"type": "prefix", "columns": 1},
            ),
            tuple([[t], [n]] for t in texts for n in pool.users),
            lambda k: k[0],
            prefix=lambda k: [k[0]],
            **grouped,
        ),
        make(
            "$ttl_list",
            Schema(
                "expirationMs bigint, elementKey struct<g: string>",
                "empty void",
                {"type": "range", "ordinals": [0]},
            ),
            tuple([n, [t]] for t in some for n in pool.expirations),
            lambda k: k[1],
            internal=True,
            prefix=lambda k: [k[0]],
            order=lambda k: ascending(k[0]),
            **grouped,
        ),
        make(
            "order",
            Schema(
                "t bigint, k string, d double", "v string", {"type": "range", "ordinals": [2, 0]}
            ),
            tuple([n, "k", d] for d in pool.doubles for n in pool.longs),
            lambda k: k,
            "t bigint, k string, d double",
            prefix=lambda k: [k[2], k[0]],
            order=lambda k: ascending(k[2], k[0]),
        ),
        make(
            "lists",
            Schema(
                "a string, b bigint, c string",
                "v string",
                {"type": "prefix", "columns": 2},
                multi=True,
            ),
            tuple([a, b, c] for a in ("a", None) for b in pool.seconds for c in some),
            lambda k: k,
            "a string, b bigint, c string",
            prefix=lambda k: k[:2],
        ),
    ]


def of_join(make: type[T], pool: Pool) -> list[T]:
    """Return families of a stream-stream join.

    Their keys have an event time before or behind, or an index. One family holds counts.
    """
    keyed: dict[str, Any] = {"hashed": lambda k: k[:1], "hashed_schema": "f string"}
    timed = tuple([t, n] for t in pool.texts[: pool.some] for n in pool.times)
    return [
        make(
            "left-keyWithTsToValues",
            Schema(
                "f string, ts bigint not null",
                "v string, m boolean",
                {"type": "ts_postfix"},
                multi=True,
            ),
            timed,
            prefix=lambda k: k[:1],
            order=lambda k: (k[1],),
            ranged=False,
            **keyed,
        ),
        make(
            "left-tsWithKey",
            Schema("f string, ts bigint not null", "empty void", {"type": "ts_prefix"}, multi=True),
            timed,
            internal=True,
            order=lambda k: (k[1],),
            **keyed,
        ),
        make(
            "right-keyWithIndexToValue",
            Schema("f string, index bigint", "v string, m boolean"),
            tuple([t, n] for t in pool.texts for n in pool.indexes),
            **keyed,
        ),
        make(
            "right-keyToNumValues",
            Schema("f string", "n bigint"),
            tuple([t] for t in pool.texts),
            internal=True,
            **keyed,
        ),
    ]
