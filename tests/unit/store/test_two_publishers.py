"""Two publishers make a snapshot of the same version and id: a task ran twice, or a query was
stopped and started again while a long upload went on.

Both snapshots have the same rows. The manifest that is there first stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from millpond.errors import ConflictError, ErrorKind, UnavailableError
from millpond.format import layout
from millpond.format.manifest import decode_manifest
from millpond.model.ids import VersionId
from millpond.storage import LocalStorage, ObjectInfo
from millpond.store.collection import announcements
from tests.agent_driver import CallError, Provider

MakeProvider = Callable[..., Provider]


class Killed(BaseException):
    """The agent ends at once."""


@pytest.fixture(params=[1, 2])
def make_any(make: MakeProvider, request: pytest.FixtureRequest) -> MakeProvider:
    """Make providers of one Spark checkpoint format, each of a run of its own."""
    runs = itertools.count()

    def provider(**arguments: Any) -> Provider:
        run_id = f"run-{next(runs)}"
        return make(spark_format=request.param, retain_versions=2, run_id=run_id, **arguments)

    return provider


def opened(provider: Provider, version: int, id: str = "") -> Provider:
    provider.open(version, id if provider.spark_format == 2 and version else None)
    return provider


def restored(make: MakeProvider, at: Provider) -> Provider:
    """Return another provider that opened what this one has."""
    other = opened(make(), at.version, at.id)
    assert other.state == at.state
    return other


def void(_: object) -> None:
    pass


def carried_on(provider: Provider, until: int) -> None:
    while provider.version < until:
        provider.commit()


def manifest_name(provider: Provider) -> str:
    """Return the name of the manifest of its version."""
    version = VersionId(provider.version, provider.id)
    return layout.manifest_name(version, provider.spark_format)


def around_put(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Do something before and after the next put of this manifest."""
    plain = LocalStorage.put_bytes
    waits = [True]

    def put(self: LocalStorage, key: str, data: bytes, *, if_absent: bool = False) -> None:
        if not key.endswith(name) or not waits:
            plain(self, key, data, if_absent=if_absent)
            return
        waits.clear()
        before()
        plain(self, key, data, if_absent=if_absent)
        after()

    monkeypatch.setattr(LocalStorage, "put_bytes", put)


def about_to_publish(make_any: MakeProvider) -> tuple[Provider, Callable[[], None]]:
    """Return a store whose version 2 waits for its snapshot, and a sweep of all that no manifest
    names.
    """
    a, sweeper = make_any(), make_any()
    carried_on(opened(a, 0), 1)
    a.snapshot()
    swept = VersionId(1, a.id)
    opened(sweeper, 1, a.id)
    a.commit()
    a.flush()
    return a, lambda: void(sweeper.collect(swept))


@pytest.mark.parametrize("killed", [False, True])
def test_a_late_publisher_leaves_a_manifest_that_others_need(
    make_any: MakeProvider, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Its SSTs were swept, since no manifest names them. The changelogs were collected, since the
    other manifest is there.
    """
    a, b = make_any(), make_any()
    carried_on(opened(a, 0), 2)
    a.flush()
    directory, files = a.rocksdb_checkpoint()
    opened(b, 2, a.id).snapshot()
    name = manifest_name(b)
    stands = b.read_stored(name)

    def others_go_on() -> None:
        carried_on(b, 4)
        b.collect(VersionId(b.version, b.id))
        assert len(b.stored(".changelog")) == 2 and len(b.stored(".sst")) == 1

    def kill() -> None:
        if killed:
            raise Killed

    around_put(monkeypatch, name, before=others_go_on, after=kill)
    with suppress(Killed, CallError):
        a.publish(directory, files)
    monkeypatch.undo()
    restored(make_any, b)
    assert b.read_stored(name) == stands


def test_a_late_publisher_goes_on_with_the_manifest_of_the_other_one(
    make_any: MakeProvider,
) -> None:
    a, b = make_any(), make_any()
    carried_on(opened(a, 0), 1)
    a.snapshot()
    a.commit()
    opened(b, 2, a.id).snapshot()
    answer = a.snapshot()
    assert (answer["new_files"], answer["reused_files"]) == (1, 1)
    assert answer["manifest"] == manifest_name(b)
    a.commit()
    answer = a.snapshot()
    assert (answer["new_files"], answer["reused_files"]) == (2, 1), "both snapshots have this one"
    a.collect(VersionId(a.version, a.id))
    assert len(a.stored(".sst")) == 4, "the SST that no manifest names went"
    restored(make_any, a)


def test_what_a_publisher_left_that_was_killed_is_replaced(
    make_any: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not yet taken its manifest back, which names SSTs that a sweep has deleted."""
    a, sweep = about_to_publish(make_any)
    b = make_any()

    def kill() -> None:
        raise Killed

    around_put(monkeypatch, manifest_name(a), before=sweep, after=kill)
    with pytest.raises(Killed):
        a.publish(*a.rocksdb_checkpoint())
    monkeypatch.undo()
    assert restored(make_any, a).snapshot_version == 1
    opened(b, 2, a.id).snapshot()
    assert restored(make_any, a).snapshot_version == 2


def test_nobody_takes_back_the_manifest_of_another_one(
    make_any: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaced one of which the SSTs are gone, before its publisher saw that."""
    a, sweep = about_to_publish(make_any)
    b = make_any()
    opened(b, 2, a.id)
    around_put(
        monkeypatch,
        manifest_name(a),
        before=sweep,
        after=lambda: void(b.snapshot()),
    )
    with pytest.raises(CallError, match="were collected before"):
        a.publish(*a.rocksdb_checkpoint())
    monkeypatch.undo()
    assert restored(make_any, a).snapshot_version == 2


def test_an_answer_that_was_lost_costs_no_second_upload(
    make_any: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = make_any(grace_ms=60_000)
    carried_on(opened(a, 0), 2)
    a.flush()

    def lose() -> None:
        raise UnavailableError("no answer", kind=ErrorKind.STORAGE_UNAVAILABLE)

    around_put(monkeypatch, manifest_name(a), after=lose)
    with pytest.raises(CallError, match="no answer"):
        a.publish(*a.rocksdb_checkpoint())
    a.snapshot()
    assert len(a.stored(".sst")) == 1
    a.commit()
    assert a.snapshot()["reused_files"] == 1
    restored(make_any, a)


@pytest.mark.parametrize("swept", [False, True])
def test_a_storage_says_exists_of_what_the_same_put_has_made(
    make_any: MakeProvider, monkeypatch: pytest.MonkeyPatch, swept: bool
) -> None:
    """The answer of its first attempt was lost. Nobody else looks after this manifest."""
    a, sweeper = make_any(), make_any()
    carried_on(opened(a, 0), 1)
    a.snapshot()
    opened(sweeper, 1, a.id)
    anchor = VersionId(1, a.id)
    a.commit()
    a.flush()

    def sweep() -> None:
        if swept:
            sweeper.collect(anchor)

    def refuse() -> None:
        raise ConflictError("exists", kind=ErrorKind.OBJECT_EXISTS)

    around_put(monkeypatch, manifest_name(a), before=sweep, after=refuse)
    if swept:
        with pytest.raises(CallError, match="were collected before"):
            a.publish(*a.rocksdb_checkpoint())
    else:
        a.publish(*a.rocksdb_checkpoint())
    monkeypatch.undo()
    assert (manifest_name(a) in a.stored()) == (not swept)
    restored(make_any, a)


def test_a_late_publisher_of_an_erased_version_removes_only_its_own_ssts(
    make_any: MakeProvider,
) -> None:
    """The erasure may still need the other manifest: it reads it, and then deletes it."""
    a, b = make_any(), make_any()
    carried_on(opened(a, 0), 2)
    a.flush()
    opened(b, 2, a.id).snapshot()
    stored = b.stored()
    announcements.announce_erasure(LocalStorage(str(a.checkpoint)), 0, 2)
    with pytest.raises(CallError, match="a key was erased from version 2"):
        a.publish(*a.rocksdb_checkpoint())
    assert b.stored() == stored


def test_a_publisher_that_tries_again_takes_back_its_own_snapshot_of_an_erased_version(
    make_any: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not read what was announced. Nobody else has looked at its manifest since."""
    a = make_any(grace_ms=60_000)
    carried_on(opened(a, 0), 2)
    stored = a.stored()
    a.flush()
    announcements.announce_erasure(LocalStorage(str(a.checkpoint)), 0, 2)
    plain = LocalStorage.list

    def fail(self: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        if prefix.startswith("millpond/gc/"):
            raise UnavailableError("no answer", kind=ErrorKind.STORAGE_UNAVAILABLE)
        return plain(self, prefix)

    monkeypatch.setattr(LocalStorage, "list", fail)
    with pytest.raises(CallError, match="no answer"):
        a.publish(*a.rocksdb_checkpoint())
    monkeypatch.undo()
    assert manifest_name(a) in a.stored()
    with pytest.raises(CallError, match="a key was erased from version 2"):
        a.publish(*a.rocksdb_checkpoint())
    assert a.stored() == stored


@pytest.mark.parametrize("by_the_shim", [False, True])
def test_a_snapshot_that_the_store_found_damaged_is_replaced(
    make_any: MakeProvider, by_the_shim: bool
) -> None:
    a, b = make_any(), make_any(options={"restore.verifyChecksums": "true"})
    carried_on(opened(a, 0), 1)
    a.snapshot()
    carried_on(a, 3)
    a.snapshot()
    name = manifest_name(a)
    damaged = a.read_stored(name)
    if by_the_shim:
        b.open(3, a.id if a.spark_format == 2 else None, excluded=[name])
    else:
        newest = max(decode_manifest(damaged).ssts, key=lambda sst: sst.local_name)
        content = a.read_stored(newest.key)
        a.replace_stored(newest.key, content[:-1] + b"?")
        opened(b, 3, a.id)
    assert b.snapshot_version == 1
    b.snapshot()
    assert b.read_stored(name) != damaged
    assert restored(make_any, b).snapshot_version == 3
