# SPDX-License-Identifier: Apache-2.0
"""A list that somebody wants only if it is short. The test counts what is copied."""

from __future__ import annotations

from pathlib import Path

from integration.harness import Harness, Schema
from integration.store_cases import open_provider

_LIST = Schema("k string, n bigint", "v string", multi=True)


def test_a_list_is_not_copied_if_it_is_longer_than_wanted(harness: Harness, tmp_path: Path) -> None:
    """The transport of Python state asks for each list with each frame of rows."""
    provider = open_provider(harness, tmp_path)
    store = provider.store(0)
    store.create_cf("list", _LIST)
    for _ in range(100):
        harness.call(
            "merge_list", s=store.name, cf="list", k=["a", 1], v=[["0123456789" * 10]] * 100
        )
    harness.call("merge_list", s=store.name, cf="list", k=["b", 1], v=[["short"]] * 10)

    def read(key: str, values: int, most_bytes: int) -> tuple[int, int]:
        asked = {"s": store.name, "cf": "list", "k": [key, 1]}
        harness.call("short_list", **asked, values=values, bytes=most_bytes)  # loads classes
        answer = harness.call("short_list", **asked, values=values, bytes=most_bytes)
        return answer["values"], answer["allocated"]

    whole, of_all = read("a", 10_000, 1 << 30)
    assert whole == 10_000 and of_all > 1_000_000
    for values, most_bytes in ((9_999, 1 << 30), (1 << 30, 1 << 20), (10, 10)):
        number, allocated = read("a", values, most_bytes)
        assert number == -1 and allocated < 50_000, allocated
    assert read("b", 10, 10_000)[0] == 10
    assert read("b", 9, 10_000)[0] == -1
    assert read("b", 10, 100)[0] == -1
    assert read("absent", 0, 0)[0] == 0
    store.abort()
    provider.close()
