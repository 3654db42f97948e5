# SPDX-License-Identifier: Apache-2.0
"""Reads of a batch that nobody ends: what they hold does not grow with the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness import Harness, ProviderError, Schema
from integration.provider import Provider, Store
from integration.store_cases import open_provider

_MAP = Schema("k string, n bigint", "v string", {"type": "prefix", "columns": 1})


@pytest.fixture
def provider(harness: Harness, tmp_path: Path) -> Iterator[Provider]:
    opened = open_provider(harness, tmp_path)
    yield opened
    opened.close()


def _map(provider: Provider) -> Store:
    """Return a store with 100 entries of a map for each of two keys."""
    store = provider.store(0)
    store.create_cf("map", _MAP)
    for key in ("a", "b"):
        for n in range(100):
            store.put([key, n], ["an entry"], cf="map")
    return store


def _leave_midway(store: Store, call: str, key: str) -> str:
    """Begin to read a map in a call of user code. Return the iterator."""
    harness = store.provider.harness
    it = harness.name("it")
    opened = {"s": store.name, "it": it, "cf": "map", "scan": "prefix", "k": [key]}
    harness.call("iter_open", **opened, user_call=call)
    assert len(harness.call("iter_next", it=it, n=1, user_call=call)) == 1
    return it


def test_maps_that_user_code_leaves_midway_hold_nothing_that_grows(provider: Provider) -> None:
    """In real-time mode a batch has an hour of calls."""
    store, harness = _map(provider), provider.harness

    def calls(first: int, until: int) -> int:
        for n in range(first, until):
            key = "ab"[n % 2]
            _leave_midway(store, f"call {n}", key)
            text = f"{n:04}" * 1024
            harness.call("put", s=store.name, cf="map", k=[key, 7], v=[text], user_call=f"call {n}")
        return int(store.metrics()["memory_bytes"])

    few = calls(0, 100)
    assert calls(100, 500) == few
    store.abort()


def test_a_map_is_read_on_until_the_next_call(provider: Provider) -> None:
    """The operator takes what a call gives out after the call, when no key is set."""
    store, harness = _map(provider), provider.harness
    one, other = _leave_midway(store, "call 1", "a"), _leave_midway(store, "call 1", "a")
    harness.call("put", s=store.name, cf="map", k=["a", 5], v=["new"], user_call="call 1")
    assert len(harness.call("iter_next", it=one, n=-1, user_call="call 1")) == 99
    assert len(harness.call("iter_next", it=other, n=9)) == 9
    assert harness.call("get", s=store.name, cf="map", k=["a", 5]) == ["new"]
    assert len(harness.call("iter_next", it=other, n=20)) == 20
    assert harness.call("get", s=store.name, cf="map", k=["b", 5], user_call="call 2") is not None
    with pytest.raises(ProviderError, match=r"MILLPOND_STORE_CLOSED.*of the call that began it"):
        harness.call("iter_next", it=other, n=-1)
    store.abort()
