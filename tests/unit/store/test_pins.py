"""Pins: what they keep from collection, and when they end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.model.ids import VersionId
from millpond.storage import LocalStorage, ObjectInfo
from millpond.store.collection import pins
from tests.agent_driver import CallError, Provider
from tests.unit.store.conftest import MakeProvider
from tests.unit.store.histories import Clock, history, names


def collectable(make: MakeProvider) -> tuple[Provider, VersionId, Path]:
    """Return a provider of whose versions a collection leaves those from 6 on, the version to
    collect at, and where a pin may lie.
    """
    provider = make(retain_versions=2)
    versions = history(provider, 8, 2, 4, 6)
    pin = provider.checkpoint / layout.pin_key("p")
    pin.parent.mkdir()
    return provider, versions[8], pin


def test_pinned_files_stay(make: MakeProvider) -> None:
    provider, newest, pin = collectable(make)
    pin.write_text(
        json.dumps({"manifests": ["state/0/0/2.manifest"], "changelogs": ["state/0/0/3.changelog"]})
    )
    provider.collect(newest)
    assert names(provider)[:2] == ["2.manifest", "3.changelog"]
    assert make().open(3) == provider.state[:3]
    pin.unlink()
    provider.collect(newest)
    assert names(provider)[0] == "6.manifest"


@pytest.mark.parametrize("wrong", ["reader", "executor"])
def test_a_pin_ends_by_the_clock_of_the_storage(
    make: MakeProvider, clock: Clock, wrong: str
) -> None:
    """The reader's clock told when it ends, and the executor's whether that is over: a wrong one
    took the files from under a reader that was at work.
    """
    hour_ms, lease_ms = 3_600_000, 900_000
    provider, newest, pin = collectable(make)
    expires_ms = clock() + (-hour_ms if wrong == "reader" else lease_ms)
    clock.offset_ms = hour_ms if wrong == "executor" else 0
    named = {"manifests": ["state/0/0/2.manifest"], "changelogs": ["state/0/0/3.changelog"]}
    pin.write_text(json.dumps({**named, "expires_ms": expires_ms, "lease_ms": lease_ms}))
    provider.collect(newest)
    assert names(provider)[:2] == ["2.manifest", "3.changelog"] and pin.exists()
    written_s = os.stat(pin).st_mtime - lease_ms / 1000 - 1
    os.utime(pin, (written_s, written_s))
    provider.collect(newest)
    assert names(provider)[0] == "6.manifest" and not pin.exists()
    assert not list(pin.parents[1].glob(".staging-*"))


def test_a_pin_of_an_earlier_version_ends_when_it_says(make: MakeProvider, clock: Clock) -> None:
    provider, newest, pin = collectable(make)
    named = {"manifests": ["state/0/0/2.manifest"], "changelogs": []}
    pin.write_text(json.dumps({**named, "expires_ms": clock() + 60_000}))
    provider.collect(newest)
    assert names(provider)[0] == "2.manifest"
    clock.offset_ms = 61_000
    provider.collect(newest)
    assert names(provider)[0] == "6.manifest" and not pin.exists()


def test_a_pin_is_read_once_until_it_changes(
    make: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a query with many stores is large, and each store looks at each collection."""
    provider, newest, pin = collectable(make)
    pin.write_text(json.dumps({"manifests": ["state/0/0/2.manifest"], "changelogs": []}))
    opened: list[str] = []
    read = LocalStorage.read

    def noted(self: LocalStorage, key: str) -> bytes:
        opened.append(key)
        return read(self, key)

    monkeypatch.setattr(LocalStorage, "read", noted)
    for _ in range(3):
        provider.collect(newest)
    assert opened.count("millpond/pins/p.json") == 1
    assert names(provider)[0] == "2.manifest"
    pin.write_text(json.dumps({"manifests": [], "changelogs": []}))
    provider.collect(newest)
    assert names(provider)[0] == "6.manifest"


@pytest.mark.parametrize(
    "said",
    [
        "[1",
        "[1]",
        "{}",
        '{"manifests": [], "chengelogs": ["state/0/0/3.changelog"]}',
        '{"manifests": "state/0/0/2.manifest", "changelogs": []}',
        '{"manifests": [], "changelogs": [2]}',
        '{"manifests": [], "changelogs": [], "expires_ms": "0"}',
        '{"manifests": [], "changelogs": [], "expires_ms": 0, "lease_ms": -1}',
    ],
)
def test_an_unreadable_pin_stops_all_collection(make: MakeProvider, said: str) -> None:
    """A name with a flipped bit, for one: the pin seemed to keep nothing."""
    provider, newest, pin = collectable(make)
    pin.write_text(said)
    before = provider.stored()
    with pytest.raises(CallError, match="nothing is collected") as caught:
        provider.collect(newest)
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED and provider.stored() == before


def test_a_pin_lasts_while_it_is_renewed(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    assert pins.Pins().read(storage, now_ms=0) == frozenset()
    with pins.pinned(
        storage, manifests=["state/0/0/3.manifest"], changelogs=["state/0/0/4.changelog"]
    ) as key:
        expires_ms = json.loads(storage.read(key))["expires_ms"]
        both = {"state/0/0/3.manifest", "state/0/0/4.changelog"}
        for now_ms in (expires_ms, expires_ms + 1, 10 * expires_ms):
            assert pins.Pins().read(storage, now_ms=now_ms) == both, "that clock is wrong"
        # A killed process had this pin. A collection waits for it no longer than its lease.
        written_s = os.stat(tmp_path / key).st_mtime - pins.LEASE_MS / 1000 - 1
        os.utime(tmp_path / key, (written_s, written_s))
        assert pins.Pins().read(storage, now_ms=0) == both
        assert pins.Pins().read(storage, now_ms=expires_ms) == frozenset()
        assert not list(storage.list(layout.PINS_PREFIX))
    with pins.pinned(storage, manifests=[], changelogs=[], lease_ms=30) as key:
        first = storage.read(key)
        while storage.read(key) == first:  # until the process renews it
            pass
    assert not list(storage.list(layout.PINS_PREFIX))


def test_a_pin_where_the_storage_tells_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deleted the file that was to tell it: the clock of this host counts."""
    look = LocalStorage.stat

    def gone(self: LocalStorage, key: str) -> ObjectInfo:
        if ".staging-" in key:
            self.delete([key])
        return look(self, key)

    monkeypatch.setattr(LocalStorage, "stat", gone)
    storage = LocalStorage(str(tmp_path))
    with pins.pinned(storage, manifests=["state/0/0/3.manifest"], changelogs=[]) as key:
        expires_ms = json.loads(storage.read(key))["expires_ms"]
        assert pins.Pins().read(storage, now_ms=expires_ms) == {"state/0/0/3.manifest"}
        assert pins.Pins().read(storage, now_ms=expires_ms + 1) == frozenset()
