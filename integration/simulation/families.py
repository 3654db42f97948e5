"""The simulated operators: their column families, and the partition of each key."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from integration import families
from integration.families import Pool, of_join, of_transform
from integration.harness import Row, Schema

MOST_PARTITIONS = 4  # every number of partitions in a run divides it


@dataclass(frozen=True, repr=False)
class Kind(families.Kind):
    """One column family."""

    # The hash of each candidate modulo MOST_PARTITIONS.
    places: list[int] = field(default_factory=list)

    def keys(self, partition: int, partitions: int) -> list[Row]:
        """Return the keys that live in a partition."""
        return [
            k
            for k, p in zip(self.candidates, self.places, strict=True)
            if p % partitions == partition
        ]

    def value(self, chance: random.Random, large: bool) -> Row:
        """Return a random value of the schema."""
        length = chance.choice((0, 1, 3, 9, 40, *((700, 2500) if large else ())))
        text = base64.b64encode(chance.randbytes(length)).decode()
        columns: list[Row] = []
        for column in self.schema.value.split(", "):
            what = column.split(" ")[1]
            columns.append(
                {
                    "string": text,
                    "bigint": chance.randint(-9, 9),
                    "boolean": length > 3,
                    "void": None,
                }[what]
            )
        return columns


@dataclass(frozen=True)
class Shape:
    """A stateful operator: what its store needs to know of it."""

    name: str
    operator: str
    schema: Schema  # of the default column family
    kinds: dict[str, Kind]
    variables: dict[str, str] = field(default_factory=dict)
    erased_by: str = ""  # the column by which keys are erased: the first of those that are hashed

    @property
    def has_families(self) -> bool:
        return self.schema.use_cf


_TEXTS = ("", "a", "b", "cc", "d", "e", "x" * 40, None)
_POOL = Pool(
    texts=_TEXTS,
    users=(-1, 7),
    expirations=(0, 5),
    doubles=(-1.5, 0.0, None),
    longs=(-300, 0, 2**40),
    seconds=(1,),
    times=(-5, 0, 2**50),
    indexes=(0, 1),
    some=5,
)


# Keys to erase: no hexadecimal digits, and no two begin alike.
NAMES = tuple(letter * 8 for letter in "klmnop")
_NAMED = replace(_POOL, texts=NAMES, some=5)


def _plain() -> list[Kind]:
    schema = Schema("g string", "v string, w bigint")
    return [Kind("default", schema, tuple([t] for t in _TEXTS), lambda k: k, "g string")]


def _pairs() -> Kind:
    schema = Schema("g string, h bigint", "v string, w bigint")
    keys = tuple([t, n] for t in NAMES[:4] for n in (-1, 2, 300))
    return Kind("default", schema, keys, lambda k: k, "g string, h bigint")


def _keyed() -> list[Kind]:
    return [k for k in of_transform(Kind, _NAMED) if k.hashed_schema == "g string"]


def shapes(partitions_of: Callable[[list[Row], str], list[int]]) -> dict[str, Shape]:
    """Return all shapes. `partitions_of` hashes rows of a schema modulo `MOST_PARTITIONS`."""
    with_families = Schema("g string", "value binary", use_cf=True)
    made = {
        "transform": Shape(
            "transform",
            "transformWithStateExec",
            with_families,
            {k.name: k for k in of_transform(Kind, _POOL)},
            {
                "value": "ValueState",
                "list": "ListState",
                "map": "MapState",
                "order": "ValueState",
                "lists": "ListState",
            },
        ),
        "join": Shape(
            "join", "symmetricHashJoin", with_families, {k.name: k for k in of_join(Kind, _POOL)}
        ),
        "plain": Shape(
            "plain",
            "stateStoreSave",
            Schema("g string", "v string, w bigint"),
            {k.name: k for k in _plain()},
        ),
    }
    pairs, keyed, sides = _pairs(), _keyed(), of_join(Kind, _NAMED)
    variables = {
        n: v for n, v in made["transform"].variables.items() if n not in ("order", "lists")
    }
    for shape in (
        Shape("pairs", "stateStoreSave", pairs.schema, {pairs.name: pairs}, erased_by="g"),
        Shape(
            "keyed",
            "transformWithStateExec",
            with_families,
            {k.name: k for k in keyed},
            variables,
            erased_by="g",
        ),
        Shape(
            "sides",
            "symmetricHashJoin",
            with_families,
            {k.name: k for k in sides},
            erased_by="f",
        ),
    ):
        made[shape.name] = shape
    for shape in made.values():
        for kind in shape.kinds.values():
            kind.places.extend(
                partitions_of([kind.hashed(k) for k in kind.candidates], kind.hashed_schema)
            )
    return made
