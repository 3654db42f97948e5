"""An example of a key is one that a look-up takes, and a wrong key is told it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import millpond
from millpond.errors import InvalidInputError
from millpond.spark.types import Atom, Decimal, Field, SparkType, Struct
from millpond.state.key_examples import key_hint
from millpond.state.tables import key_value
from tests.row_checkpoints import HashedBuilder

_KINDS: list[SparkType] = [
    Decimal(10, 2),
    *(
        Atom(name)
        for name in (
            "boolean",
            "byte",
            "short",
            "integer",
            "long",
            "float",
            "double",
            "string",
            "binary",
            "date",
            "timestamp",
            "timestamp_ntz",
        )
    ),
]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
def test_an_example_is_taken(kind: SparkType) -> None:
    inner = Struct((Field("a b", kind),))
    key = Struct((Field("outer", inner), Field("plain", kind)))
    given = shlex.split(key_hint(key, {}).partition("For example ")[2])
    values = dict(text.split("=", 1) for text in given if text != "--key")
    assert list(values) == ["outer.a b", "plain"]
    for name, text in values.items():
        assert key_value(key, name, text, {}).is_valid


def test_a_wrong_key_is_told_what_a_key_is(tmp_path: Path) -> None:
    built = HashedBuilder(tmp_path / "query")
    built.build(batches=2, snapshots=())
    with millpond.lookup(built.root) as reader:
        for wrong in ({"k": "three"}, {"nothing": 3}, {}):
            with pytest.raises(InvalidInputError) as refused:
                reader.get(wrong)
            assert "A key here is: k " in refused.value.hint and "--key k=1" in refused.value.hint
