"""Which operator of a job goes on with the state of which operator of a savepoint."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.operations.savepoint.moved_operators import (
    GIVEN,
    SAME,
    SAME_IN_ORDER,
    Unclear,
    matching,
)
from millpond.operations.savepoint.operator_shapes import (
    FamilyShape,
    OperatorShape,
    silent_changes,
)


def shape(name: str, key: str, value: str = "") -> OperatorShape:
    """Return an operator with one column family. `key`, `value`: `name:type name:type`."""
    return OperatorShape(
        name=name, families={("default", "default"): FamilyShape(_columns(key), _columns(value))}
    )


def _columns(text: str) -> tuple[tuple[str, Any], ...]:
    pairs = [word.split(":") for word in text.split()]
    return tuple((name, kind) for name, kind in pairs)


DEDUPE_K, DEDUPE_V = shape("dedupe", "k:string"), shape("dedupe", "v:long")
DEDUPE_U = shape("dedupe", "u:string")
COUNT = shape("stateStoreSave", "k:string", "count:long")
SUMS = shape("stateStoreSave", "k:string", "count:long sum:long")

Found = list[tuple[int, int, str]]


@pytest.mark.parametrize(
    ("saved", "job", "given", "found", "unclear"),
    [
        pytest.param(
            {0: DEDUPE_K}, {0: COUNT, 1: DEDUPE_K}, {}, [(0, 1, SAME)], [], id="one-below"
        ),
        pytest.param(
            {0: COUNT, 1: DEDUPE_K},
            {0: COUNT, 1: DEDUPE_V, 2: DEDUPE_K},
            {},
            [(0, 0, SAME), (1, 2, SAME)],
            [],
            id="one-between",
        ),
        pytest.param(
            {0: DEDUPE_K, 1: DEDUPE_U},
            {0: DEDUPE_U, 1: DEDUPE_K},
            {},
            [(1, 0, SAME), (0, 1, SAME)],
            [],
            id="places-changed",
        ),
        pytest.param(
            {0: DEDUPE_K, 1: DEDUPE_K},
            {0: COUNT, 1: DEDUPE_K, 2: DEDUPE_K},
            {},
            [(0, 1, SAME_IN_ORDER), (1, 2, SAME_IN_ORDER)],
            [],
            id="two-alike",
        ),
        pytest.param(
            {0: DEDUPE_K},
            {0: DEDUPE_K, 1: DEDUPE_K},
            {},
            [],
            [Unclear("dedupe", (0,), (0, 1))],
            id="one-of-two-alike-is-new",
        ),
        pytest.param(
            {0: DEDUPE_K}, {0: DEDUPE_K, 1: DEDUPE_K}, {0: 1}, [(0, 1, GIVEN)], [], id="by-hand"
        ),
        pytest.param(
            {0: DEDUPE_K, 1: DEDUPE_K},
            {0: DEDUPE_K},
            {},
            [],
            [Unclear("dedupe", (0, 1), (0,))],
            id="one-of-two-alike-is-gone",
        ),
        pytest.param(
            {0: COUNT}, {0: SUMS}, {}, [(0, 0, "same key, other values")], [], id="a-column-more"
        ),
        pytest.param(
            {0: DEDUPE_K},
            {0: DEDUPE_U},
            {},
            [(0, 0, "same types, other names")],
            [],
            id="another-key-of-the-type",
        ),
        pytest.param(
            {0: DEDUPE_K},
            {0: DEDUPE_V},
            {},
            [(0, 0, "the only one of its name")],
            [],
            id="another-key",
        ),
        pytest.param(
            {0: DEDUPE_K, 1: DEDUPE_V},
            {0: shape("dedupe", "x:int"), 1: shape("dedupe", "y:int")},
            {},
            [],
            [Unclear("dedupe", (0, 1), (0, 1))],
            id="two-that-are-not-alike",
        ),
        pytest.param({0: COUNT}, {0: DEDUPE_K}, {}, [], [], id="another-name"),
    ],
)
def test_matching(
    saved: dict[int, OperatorShape],
    job: dict[int, OperatorShape],
    given: dict[int, int],
    found: Found,
    unclear: list[Unclear],
) -> None:
    result = matching(saved, job, given)
    assert [(p.saved, p.job, p.why) for p in result.pairs] == found
    assert list(result.unclear) == unclear
    for one in result.unclear:
        assert f"--map-operator {one.saved[0]}=NEW" in str(one)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("v:long w:long", "v:long w:long", []),
        ("v:long w:long", "w:long v:long", ["value: v, w have changed places."]),
        ("v:long", "w:long", ["value: v is w in the job."]),
        ("v:long w:long x:long", "w:long v:long y:long", ["v is w", "w is v", "x is y"]),
        ("v:long w:int", "w:int v:long", []),  # Spark refuses it
    ],
)
def test_what_changes_in_silence(before: str, after: str, told: list[str]) -> None:
    old, new = (shape("stateStoreSave", "k:string", text) for text in (before, after))
    found = silent_changes(old, new, by_name=False)
    assert len(found) == len(told)
    for text, part in zip(found, told, strict=True):
        assert part in text
    if {name for name, _ in _columns(before)} == {name for name, _ in _columns(after)}:
        assert silent_changes(old, new, by_name=True) == ()


def test_a_field_with_another_name_in_avro() -> None:
    """Spark finds fields by name. So one that is gone, or one that is new, is no news alone."""
    two, one = (shape("it", "k:string", text) for text in ("v:long w:long", "v:long"))
    other = shape("it", "k:string", "v:long x:long")
    assert silent_changes(two, one, by_name=True) == silent_changes(one, two, by_name=True) == ()
    (told,) = silent_changes(two, other, by_name=True)
    assert "x begins as null, and the values of w are lost" in told


def test_nested_columns_and_variables() -> None:
    """Fields of structs count, also in arrays and maps. A variable that is gone keeps its rows."""

    def processor(field: str, *names: str) -> OperatorShape:
        struct = ("struct", ((field, "long"),))
        value = (("a", ("array", struct)), ("m", ("map", "string", struct)), ("s", struct))
        return OperatorShape(
            name="transformWithStateExec",
            families={
                ("default", name): FamilyShape((("k", "string"),), value)
                for name in (*names, "$rowCounter_x")
            },
        )

    found = silent_changes(processor("v", "it", "old"), processor("w", "it"), by_name=False)
    assert [text.split(" in the job")[0] for text in found[:3]] == [
        "state variable it: value: a.v is a.w",
        "state variable it: value: m.v is m.w",
        "state variable it: value: s.v is s.w",
    ]
    (gone,) = found[3:]
    assert gone.startswith("state variable old:") and "deleteIfExists('old')" in gone
