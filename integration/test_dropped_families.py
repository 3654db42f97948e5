"""Column families that were dropped, and come again: of the same form or of another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.harness import Harness, Provider, ProviderError, Row
from integration.processes import wait_until
from integration.store_cases import FAMILIES, LISTS, PLAIN, open_provider, write

VALUE = ["v"]


def test_a_family_that_was_removed_is_empty_when_it_comes_again(
    harness: Harness, tmp_path: Path
) -> None:
    """Its old rows lay on disk, in memory or only in the batch. All are gone.

    They are also gone if the batch that removed the family runs twice.
    """
    provider = open_provider(harness, tmp_path)
    for version in range(3):
        store = write(provider, version)
        store.put(["old", version], VALUE, cf="prefix")
        store.commit()
        provider.snapshot()
    for _ in range(2):  # the second attempt asks for version 3 again, after the commit of 4
        store = write(provider, 3)
        assert len(store.scan(cf="prefix")) == 3
        store.put(["old", 9], VALUE, cf="prefix")
        assert store.remove_cf("prefix")
        store.commit()
    for version in (4, 5):
        store = write(provider, version)
        assert store.scan(cf="prefix") == [(["new", 4], VALUE)] * (version - 4)
        store.put(["new", 4], VALUE, cf="prefix")
        store.commit()
        provider.snapshot()
        provider.close()
        provider = open_provider(harness, tmp_path)
    provider.close()


def _drop(provider: Provider, family: str) -> None:
    """Write a snapshot of version 1, which has five rows of the family, and then two without it.

    After version 4 the family is forgotten.
    """
    store = write(provider, 0, {family: PLAIN})
    store.put_many([(["old", i], VALUE) for i in range(5)], cf=family)
    store.commit()
    store = write(provider, 1, {family: PLAIN})
    provider.snapshot()
    assert store.remove_cf(family)
    store.commit()
    store = write(provider, 2, {})
    provider.snapshot()  # has the deletes, so the next batch forgets the family
    store.commit()
    write(provider, 3, {}).commit()


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_a_family_has_no_rows_of_one_that_was_dropped_before_it(
    harness: Harness, tmp_path: Path, backend: str
) -> None:
    """This holds even for a restore from a snapshot that is older than the drop."""
    conf = {"millpond.gc.graceMs": 600_000, "millpond.backend": backend}
    provider = open_provider(harness, tmp_path, conf=conf)
    _drop(provider, "dropped")
    store = write(provider, 4, {"new": PLAIN})
    assert store.scan(cf="new") == []
    store.put(["new", 1], VALUE, cf="new")
    store.commit()
    provider.close()
    manifests = sorted(tmp_path.glob("state/0/0/*.manifest"))
    assert [path.name for path in manifests] == ["1.manifest", "2.manifest"]
    manifests[1].unlink()

    provider = open_provider(harness, tmp_path, conf=conf)
    for version in (5, 6):
        store = write(provider, version, {"new": PLAIN})
        assert store.scan(cf="new") == [(["new", 1], VALUE)]
        assert store.get(["old", 1], cf="new") is None
        store.commit()
        provider.snapshot()
    provider.close()
    again = open_provider(harness, tmp_path, conf=conf)
    assert write(again, 7, {"new": PLAIN}).scan(cf="new") == [(["new", 1], VALUE)]
    again.close()


@pytest.mark.parametrize("form", ["lists", "prefix", "range"])
def test_a_family_that_was_dropped_comes_again_in_another_form(
    harness: Harness, tmp_path: Path, form: str
) -> None:
    """It has the name and the number of the one that was dropped. So it is read in its own form by
    a restore from a snapshot that lists the other one, as dropped or with its rows.
    """
    conf = {"millpond.gc.graceMs": 600_000}
    provider = open_provider(harness, tmp_path, conf=conf)
    _drop(provider, "again")
    families = {"again": FAMILIES[form]}
    key: Row = [1, "new"] if form == "range" else ["new", 1]
    store = write(provider, 4, families)
    assert store.scan(cf="again") == []
    store.put(key, VALUE, cf="again")
    store.commit()
    provider.close()
    manifests = sorted(tmp_path.glob("state/0/0/*.manifest"))
    assert [path.name for path in manifests] == ["1.manifest", "2.manifest"]
    for snapshot in reversed(manifests):
        provider = open_provider(harness, tmp_path, conf=conf)
        store = write(provider, 5, families)
        assert store.scan(cf="again") == [(key, VALUE)]
        assert store.get(key, cf="again") == VALUE
        store.abort()
        provider.close()
        snapshot.unlink()
    provider = open_provider(harness, tmp_path, conf=conf)
    for version in (5, 6):
        store = write(provider, version, families)
        assert store.scan(cf="again") == [(key, VALUE)]
        store.commit()
        provider.snapshot()
    provider.close()


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
@pytest.mark.parametrize("opened", [False, True], ids=["", "opened anew"])
@pytest.mark.parametrize("form", ["lists", "prefix", "range"])
def test_a_dropped_family_comes_again_in_another_form_before_a_snapshot(
    harness: Harness, tmp_path: Path, form: str, opened: bool, backend: str
) -> None:
    """Its deletes are in changelogs alone, and no batch could bring about a snapshot. It gets
    another number, so that these do not meet its rows.
    """
    conf = {"millpond.backend": backend, "millpond.gc.graceMs": 600_000}
    both, families = {"again": PLAIN, "plain": PLAIN}, {"again": FAMILIES[form], "plain": PLAIN}
    key: Row = [1, "old"] if form == "range" else ["old", 1]
    provider = open_provider(harness, tmp_path, conf=conf)
    store = write(provider, 0, both)
    for family in both:
        store.put_many([(["old", i], VALUE) for i in range(5)], cf=family)
    store.commit()
    store = write(provider, 1, both)
    provider.snapshot()
    assert store.remove_cf("again")
    store.commit()

    def anew() -> Provider:
        provider.close()
        return open_provider(harness, tmp_path, conf=conf)

    if opened:
        provider = anew()
    for fails in (True, False):
        store = write(provider, 2, families)
        assert store.scan(cf="again") == []
        store.put(key, VALUE, cf="again")
        if fails:
            store.abort()
        else:
            store.commit()
    for version in (3, 4, 5):
        if version > 3:
            provider = anew()
        store = write(provider, version, families)
        assert store.scan(cf="again") == [(key, VALUE)]
        assert len(store.scan(cf="plain")) == 5
        if version == 3:
            store.remove(["old", 0], cf="plain")
            store.put(["old", 5], VALUE, cf="plain")
        if version == 5:
            provider.snapshot()
        store.commit()
    manifests = sorted(tmp_path.glob("state/0/0/*.manifest"))
    assert [path.name for path in manifests] == ["1.manifest", "5.manifest"]
    provider.close()
    with pytest.raises(ProviderError, match="is stored as"):  # in the same batch
        provider = open_provider(harness, tmp_path, conf=conf)
        store = write(provider, 6, families)
        assert store.remove_cf("again")
        store.create_cf("again", PLAIN)
    store.abort()
    provider.close()


@pytest.mark.parametrize("warms_up", [False, True])
def test_a_batch_that_makes_a_dropped_family_in_another_form_runs_again(
    harness: Harness, tmp_path: Path, warms_up: bool
) -> None:
    """Each attempt loads the store, from a snapshot that lists the dropped one."""
    conf = {"millpond.restore.warmUp": warms_up}
    provider = open_provider(harness, tmp_path, conf=conf)
    both = {"again": PLAIN, "plain": PLAIN}
    store = write(provider, 0, both)
    for family in both:
        store.put(["old", 1], VALUE, cf=family)
    store.commit()
    store = write(provider, 1, both)
    assert store.remove_cf("again")
    store.commit()
    store = write(provider, 2, {"plain": PLAIN})
    provider.snapshot()
    store.commit()
    provider.close()
    provider = open_provider(harness, tmp_path, conf=conf)
    for attempt in range(3):
        if warms_up:
            harness.hold("warm-up.step")
        store = write(provider, 3, {"again": LISTS, "plain": PLAIN})
        assert store.scan(cf="again") == []
        store.put_list(["new", attempt], [VALUE, VALUE], cf="again")
        if warms_up:
            wait_until(harness.is_holding, seconds=60, what="the warm-up")
            harness.let_go()
        if attempt < 2:
            store.abort()
    store.commit()
    store = write(provider, 4, {"again": LISTS, "plain": PLAIN})
    assert store.values(["new", 2], cf="again") == [VALUE, VALUE]
    assert store.scan(cf="plain") == [(["old", 1], VALUE)]
    store.abort()
    provider.close()
