"""State variables between keys."""

from __future__ import annotations

import io
from typing import Any

import pytest
from pyspark.sql.types import StructType

from millpond.transport.client import Handle
from millpond.transport.session import Session
from millpond.transport.wire import Wire


class _AskedError(Exception):
    """Spark was asked."""


class _Client:
    """Makes variables, and answers no question about one."""

    def schema(self, schema: StructType) -> StructType:
        return schema

    def get_value_state(self, *_: Any) -> None:
        """Declare."""

    get_list_state = get_map_state = get_value_state

    def __getattr__(self, name: str) -> Any:
        raise _AskedError(name)


def test_reads_after_the_last_key_are_sparks() -> None:
    """Without a key Spark refuses them. They told the state of the last key."""
    handle = Handle(
        _Client(),  # type: ignore[arg-type]
        Session(Wire(io.BytesIO(), io.BytesIO())),
        "none",
    )
    schema = StructType().add("v", "long")
    value = handle.getValueState("value", schema)
    values = handle.getListState("list", schema)
    entries = handle.getMapState("map", schema, schema)
    states: list[Any] = [[(1,)], [[(2,)]], [[((3,), (4,))]]]
    for begin, of_keys in handle.beginnings(states):
        begin(of_keys[0])
    assert (value.get(), list(values.get()), entries.containsKey((3,))) == ((1,), [(2,)], True)
    handle.leave_keys()
    for read in (
        value.exists,
        value.get,
        values.exists,
        lambda: list(values.get()),
        entries.exists,
        lambda: entries.getValue((3,)),
        lambda: entries.containsKey((3,)),
        lambda: list(entries.iterator()),
        lambda: list(entries.keys()),
        lambda: list(entries.values()),
    ):
        with pytest.raises(_AskedError):
            read()
