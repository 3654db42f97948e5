"""Which column families follow from which, and how Millpond numbers the rows of joins.

integration/test_savepoints.py has the rows themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import UnsupportedError
from millpond.spark.log_entries import OperatorInfo
from millpond.state.join_row_numbers import numbers_of
from millpond.state.second_records import numbered, second_records

PROCESSOR = OperatorInfo(name="transformWithStateExec", stores=("default",), partitions=2)
JOIN = OperatorInfo(name="symmetricHashJoin", stores=("default",), partitions=2)
AGGREGATION = OperatorInfo(name="stateStoreSave", stores=("default",), partitions=2)


@pytest.mark.parametrize(
    ("info", "store", "family", "expected"),
    [
        (AGGREGATION, "default", "default", []),
        (PROCESSOR, "default", "value", []),
        (PROCESSOR, "default", "list", [("default", "$rowCounter_list")]),
        (PROCESSOR, "default", "timed", [("default", "$ttl_timed")]),
        (
            PROCESSOR,
            "default",
            "lists",
            [("default", f"${kind}_lists") for kind in ("ttl", "min", "count")],
        ),
        (
            PROCESSOR,
            "default",
            "$eventTimers_keyToTimestamp",
            [("default", "$eventTimers_timestampToKey")],
        ),
        (JOIN, "left-keyWithIndexToValue", "default", [("left-keyToNumValues", "default")]),
        (JOIN, "default", "right-keyWithIndexToValue", [("default", "right-keyToNumValues")]),
        (JOIN, "default", "left-keyWithTsToValues", [("default", "left-tsWithKey")]),
        (JOIN, "default", "default", []),
    ],
)
def test_what_follows(
    info: OperatorInfo, store: str, family: str, expected: list[tuple[str, str]]
) -> None:
    there = [
        "value",
        "list",
        "$rowCounter_list",
        "timed",
        "$ttl_timed",
        "$ttl_lists",
        "$min_lists",
        "$count_lists",
    ]
    there.append("$rowCounter_lists")  # the schema names it, and nothing writes it
    found = second_records(info, store, family, there)
    assert [(second.store, second.family) for second in found] == expected
    assert numbered(found) == family.endswith("keyWithIndexToValue") or numbered(
        found
    ) == store.startswith("left-")


@pytest.mark.parametrize(
    ("info", "store", "family", "first"),
    [
        (PROCESSOR, "default", "$ttl_timed", "'timed'"),
        (PROCESSOR, "default", "$rowCounter_list", "'list'"),
        (PROCESSOR, "default", "$procTimers_timestampToKey", "'$procTimers_keyToTimestamp'"),
        (JOIN, "left-keyToNumValues", "default", "'left-keyWithIndexToValue'"),
        (JOIN, "default", "right-tsWithKey", "'right-keyWithTsToValues'"),
    ],
)
def test_what_follows_is_not_edited(
    info: OperatorInfo, store: str, family: str, first: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        second_records(info, store, family, ())
    assert first in str(caught.value) and first in caught.value.hint


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 5))))
def test_numbers_have_no_gap(rows: list[tuple[int, int]]) -> None:
    hashes = np.array([(key, key // 2) for key, _ in rows], np.uint64).reshape(-1, 2)
    numbers, counts = numbers_of(hashes, np.array([number for _, number in rows], np.int64))
    for key in {key for key, _ in rows}:
        mine = [(before, row) for row, (of, before) in enumerate(rows) if of == key]
        assert [numbers[row] for _, row in sorted(mine)] == list(range(len(mine))), (
            "the rows keep their order"
        )
        assert [counts[row] for _, row in sorted(mine)] == [len(mine)] + [-1] * (len(mine) - 1)
