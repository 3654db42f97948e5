"""A thread outlives its task attempt, and calls its store.

Its calls change nothing: not between batches, and not in the batch of the next attempt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration import store_cases
from integration.harness import Harness, Provider, ProviderError, Row, Schema, Store
from integration.processes import wait_until
from integration.store_cases import open_provider

PLAIN = Schema("k string, n bigint", "v string")
LISTS = Schema("k string, n bigint", "v string", multi=True)
PREFIX = Schema("k string, n bigint", "v string", {"type": "prefix", "columns": 1})
RANGE = Schema("n bigint, k string", "v string", {"type": "range", "ordinals": [0]})
FAMILIES = {"plain": PLAIN, "lists": LISTS, "prefix": PREFIX, "range": RANGE}
KEYS: dict[str, Row] = {"plain": ["a", 1], "lists": ["a", 1], "prefix": ["a", 1], "range": [1, "a"]}
OTHER: dict[str, Row] = {
    "plain": ["z", 9],
    "lists": ["z", 9],
    "prefix": ["a", 9],
    "range": [9, "z"],
}

DEFINED = {"key": PLAIN.key, "value": PLAIN.value, "spec": {"type": "none"}}
READS: list[dict[str, Any]] = [
    *[{"do": "get", "cf": name, "k": key} for name, key in KEYS.items()],
    {"do": "exists", "cf": "plain", "k": KEYS["plain"]},
    {"do": "multi_get", "cf": "plain", "keys": [KEYS["plain"]]},
    {"do": "values", "cf": "lists", "k": KEYS["lists"]},
    *[{"do": "scan", "cf": name} for name in FAMILIES],
    {"do": "scan", "cf": "lists", "multi": True},
    {"do": "scan", "cf": "prefix", "scan": "prefix", "k": ["a"]},
    {"do": "scan", "cf": "range", "scan": "range", "from": [0, ""]},
    {"do": "register_cf", "cf": "late", **DEFINED},
    {"do": "register_cf", "cf": "plain", **DEFINED},
    {"do": "cf_names"},
]
WRITES: list[dict[str, Any]] = [
    *[
        {"do": "put", "cf": name, "k": keys[name], "v": ["late"]}
        for keys in (KEYS, OTHER)
        for name in FAMILIES
    ],
    *[{"do": "remove", "cf": name, "k": key} for name, key in KEYS.items()],
    {"do": "put_list", "cf": "lists", "k": OTHER["lists"], "v": [["late"]]},
    {"do": "merge", "cf": "lists", "k": KEYS["lists"], "v": ["late"]},
    {"do": "merge_list", "cf": "lists", "k": OTHER["lists"], "v": [["late"], ["later"]]},
    {"do": "delete_range", "cf": "range", "from": [0, ""], "to": [99, ""]},
    {"do": "create_cf", "cf": "late", **DEFINED},
    {"do": "remove_cf", "cf": "plain"},
    {"do": "commit"},
]


def all_rows(store: Store) -> dict[str, list[tuple[Row, Row]]]:
    """Return the rows of each family, in a fixed order."""
    return {
        name: sorted(store.scan(cf=name, **({"multi": True} if name == "lists" else {})))
        for name in FAMILIES
    }


def refused(harness: Harness, store: Store, calls: list[dict[str, Any]]) -> None:
    """Make the calls on `store`. The store must refuse each as too late."""
    answers = harness.call_all([{**call, "s": store.name} for call in calls])
    for call, answer in zip(calls, answers, strict=True):
        assert isinstance(answer, ProviderError) and "MILLPOND_STORE_CLOSED" in answer.text, (
            call,
            answer,
        )


def one_row_each(provider: Provider, version: int, value: str, **arguments: Any) -> Store:
    """Return the store at `version`. Put a row into each family."""
    store = provider.store(version, **arguments)
    for name, schema in FAMILIES.items():
        store.create_cf(name, schema)
        store.put(KEYS[name], [value], cf=name)
    return store


@pytest.mark.parametrize(
    "conf", [{}, {"millpond.restore.warmUp": False}], ids=["in-memory", "on-disk"]
)
@pytest.mark.parametrize(
    "when", ["between batches", "in the next batch", "while the next one reads"]
)
def test_a_lingering_thread_is_refused_and_changes_nothing(
    harness: Harness, tmp_path: Path, when: str, conf: dict[str, Any]
) -> None:
    provider = open_provider(harness, tmp_path, conf=conf)
    one_row_each(provider, 0, "first").commit()
    provider.store(1).abort()
    provider.snapshot()
    provider.close()
    provider = open_provider(harness, tmp_path, conf=conf)
    late = one_row_each(provider, 1, "never committed", task="late")
    late.put(OTHER["plain"], ["never committed"], cf="plain")
    cursor = late.iterate(cf="plain")
    reusable = late.iterate(cf="range", scan="reusable")
    harness.end_task("late")

    def linger() -> None:
        refused(harness, late, WRITES + READS)
        for it in (cursor, reusable):
            with pytest.raises(ProviderError, match="MILLPOND_STORE_CLOSED"):
                it.next()
        with pytest.raises(ProviderError, match="MILLPOND_STORE_CLOSED"):
            reusable.seek([0])
        late.abort()  # no error, like a second abort

    if when == "between batches":
        linger()
    if when == "while the next one reads":
        read = provider.read_store(1)
        linger()
        assert all_rows(read)["plain"] == [(KEYS["plain"], ["first"])]
        read.release()
    store = one_row_each(provider, 1, "second")
    if when == "in the next batch":
        linger()
    expected = {name: [(key, ["second"])] for name, key in KEYS.items()}
    assert all_rows(store) == expected
    assert "late" not in store.cf_names()
    if when == "in the next batch":
        linger()
    assert store.commit().version == 2
    linger()
    provider.store(2).abort()
    provider.snapshot()
    for _ in range(2):
        store = store_cases.write(provider, 2, FAMILIES)
        assert all_rows(store) == expected
        store.abort()
        provider.close()
        provider = open_provider(harness, tmp_path, conf=conf)  # round 2 reads storage
    provider.close()


def test_a_lingering_reader_is_refused(harness: Harness, tmp_path: Path) -> None:
    provider = open_provider(harness, tmp_path)
    one_row_each(provider, 0, "first").commit()
    late = provider.read_store(1, task="late")
    assert all_rows(late)["plain"] == [(KEYS["plain"], ["first"])]
    cursor = late.iterate(cf="plain")
    harness.end_task("late")
    refused(harness, late, READS)
    store = one_row_each(provider, 1, "second")
    refused(harness, late, READS)
    with pytest.raises(ProviderError, match="MILLPOND_STORE_CLOSED"):
        cursor.next()
    late.release()
    assert all_rows(store)["plain"] == [(KEYS["plain"], ["second"])]
    assert store.commit().version == 2
    provider.close()


@pytest.mark.parametrize("point", ["session.undo", "commit.published"])
def test_a_store_whose_abort_or_commit_fails_is_given_back_and_loaded_again(
    harness: Harness, tmp_path: Path, point: str
) -> None:
    conf = {"millpond.lock.acquireTimeoutMs": 2000}
    provider = open_provider(harness, tmp_path, conf=conf)
    one_row_each(provider, 0, "first").commit()
    store = one_row_each(provider, 1, "undone")
    cursor = store.iterate(cf="plain")
    harness.arm(point, kind="INTERNAL")
    if point == "commit.published":
        with pytest.raises(ProviderError, match="a fault of the test"):
            store.commit()
    store.abort()
    assert harness.disarm() == 1
    refused(harness, store, READS)
    with pytest.raises(ProviderError, match="MILLPOND_STORE_CLOSED"):
        cursor.next()
    again = one_row_each(provider, 1, "second")
    assert again.commit().version == 2
    read = provider.read_store(2)
    assert all_rows(read) == {name: [(key, ["second"])] for name, key in KEYS.items()}
    read.release()
    provider.close()


def test_an_attempt_that_asks_again_ends_what_it_had(harness: Harness, tmp_path: Path) -> None:
    provider = open_provider(harness, tmp_path)
    one_row_each(provider, 0, "first").commit()
    late = one_row_each(provider, 1, "void", task="same")
    store = one_row_each(provider, 1, "second", task="same")
    refused(harness, late, WRITES + READS)
    late.abort()
    assert all_rows(store) == {name: [(key, ["second"])] for name, key in KEYS.items()}
    assert store.commit().version == 2
    harness.end_task("same")
    read = provider.read_store(2)
    assert all_rows(read) == {name: [(key, ["second"])] for name, key in KEYS.items()}
    read.release()
    provider.close()


@pytest.mark.parametrize("point", ["flush.done", "snapshot.checkpoint"])
def test_a_thread_that_lingers_in_a_write_spills_no_later_batch(
    harness: Harness, tmp_path: Path, point: str
) -> None:
    """It flushes for its own batch. Meanwhile the next attempt commits, without a flush."""

    def opened() -> Provider:
        conf = {"millpond.memory.budget": "256k", "millpond.restore.warmUp": False}
        return open_provider(
            harness, tmp_path / "query", schema=PLAIN, operator="dedupe", conf=conf
        )

    def limit(budget: str) -> None:
        # The store that was opened last decides the budget of all.
        open_provider(harness, tmp_path / budget, conf={"millpond.memory.budget": budget}).close()

    large: list[tuple[Row, Row]] = [(["large", n], ["x" * 2500]) for n in range(400)]
    provider = opened()
    store = provider.store(0)
    store.put(["a", 1], ["first"])
    store.commit()
    late = provider.store(1, task="late")
    harness.hold(point)
    write = harness.begin("put_many", s=late.name, rows=large)
    wait_until(harness.is_holding, seconds=15, what="the thread that is to linger")
    harness.end_task("late")
    limit("64m")
    store = provider.store(1)
    store.put(["a", 1], ["second"])
    assert store.commit().version == 2
    store = provider.store(2)
    store.put_many(large)
    limit("256k")
    harness.let_go()
    with pytest.raises(ProviderError, match="MILLPOND_STORE_CLOSED"):
        harness.join(write)
    assert store.get(["a", 1]) == ["second"]
    store.put(["b", 2], ["third"])
    assert int(store.metrics()["custom"]["millpondSpills"]) == 1
    assert store.commit().version == 3
    provider.store(3).abort()
    provider.snapshot()
    expected = sorted([*large, (["a", 1], ["second"]), (["b", 2], ["third"])])
    for _ in range(2):
        read = provider.read_store(3)
        assert sorted(read.scan()) == expected
        read.release()
        provider.close()
        provider = opened()  # round 2 reads storage
    provider.close()
