"""Look-ups in stores that cannot be rescaled: why says where their rows lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millpond
from integration.depth import quick_first
from millpond.errors import ErrorKind
from millpond.format import layout, spark_names
from millpond.model.ids import StoreId
from millpond.model.json_fields import KeyGroupsInfo
from millpond.state import open_stores
from millpond.state.key_reader import KeyReader
from millpond.state.open_stores import OpenStores
from millpond.state.selection import open_state
from millpond.storage import LocalStorage
from millpond.store.point_reads import PointReader
from tests.refusals import refused
from tests.row_checkpoints import HashedBuilder

_BATCHES = 4


class InSlot0(HashedBuilder):
    """Who wrote the rows did not know the operator. Now it is known."""

    def key(self, store: StoreId, version: int) -> bytes:
        return b"\0\0" + super().key(store, version)[2:]

    def _key_groups(self) -> KeyGroupsInfo:
        why = "operator stateStoreSave is not known to this version of millpond"
        return replace(super()._key_groups(), scalable=False, reason=why)


class Misplaced(HashedBuilder):
    """One key is in the wrong partition. All rows lie where their keys say."""

    def _key_groups(self) -> KeyGroupsInfo:
        why = "a key of key group 3 is in partition 0 of 4: Spark did not place it"
        return replace(super()._key_groups(), scalable=False, reason=why)


@pytest.mark.parametrize("kind", [InSlot0, Misplaced, HashedBuilder])
def test_each_key_is_found(tmp_path: Path, kind: type[HashedBuilder]) -> None:
    made = kind(tmp_path / "query", partitions=4)
    made.build(_BATCHES, (2,))
    with millpond.lookup(made.root) as state:
        for store in made.stores():
            for version in range(1, _BATCHES + 1):
                assert state.get({"k": made._number(store, version)}) != []


class Arbitrary(HashedBuilder):
    """A transformWithState: its schema does not tell by what Spark placed the keys."""

    def spark_logs(self, batches: int) -> None:
        super().spark_logs(batches)
        key = spark_names.operator_metadata_v1_key(0)
        text = self.storage.read(key)
        told = text.replace(b"stateStoreSave", b"transformWithStateExec")
        assert told != text
        self.storage.put_bytes(key, told)

    def absent(self) -> list[int]:
        """Return keys that it does not have."""
        there = {self._number(s, v) for s in self.stores() for v in range(1, _BATCHES + 1)}
        return [k for k in range(200) if k not in there]


class Elsewhere(Arbitrary):
    """Partition 6 has a key that its bytes do not lead to."""

    misplaced = 6

    def header(self, store: StoreId, version: int) -> Any:
        made = super().header(store, version)
        why = "a key of key group 3 is in partition 6 of 8: Spark did not place it"
        groups = replace(made.key_groups, scalable=False, reason=why)
        wrong = store.partition == self.misplaced and version == _BATCHES
        return replace(made, key_groups=groups) if wrong else made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[StoreId]:
    """Return the stores of which a reader was opened."""
    stores: list[StoreId] = []

    class Noted(PointReader):
        def __init__(self, version: Any, **more: Any) -> None:
            stores.append(version.files.store)
            super().__init__(version, **more)

    monkeypatch.setattr(open_stores, "PointReader", Noted)
    return stores


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return which keys and prefixes a local storage was asked for."""
    calls: list[str] = []
    for name in ("list", "read", "read_range", "get_to_file", "stat"):
        plain = getattr(LocalStorage, name)

        def noted(self: Any, key: str, *more: Any, plain: Any = plain, **named: Any) -> Any:
            calls.append(key)
            return plain(self, key, *more, **named)

        monkeypatch.setattr(LocalStorage, name, noted)
    return calls


def state_of(calls: list[str]) -> list[str]:
    """Return the calls for files of stores."""
    return [key for key in calls if layout.parse_key(key) is not None]


@pytest.mark.parametrize("spark_format", quick_first([1, 2]))
@pytest.mark.parametrize("snapshot", quick_first([2, _BATCHES]))
def test_an_absent_key_opens_no_other_partition(
    tmp_path: Path,
    opened: list[StoreId],
    asked: list[str],
    spark_format: int,
    snapshot: int,
) -> None:
    """Whether keys may lie elsewhere was told by a reader of each partition, with all its state."""
    made = Arbitrary(tmp_path / "query", partitions=8, spark_format=spark_format)
    made.build(_BATCHES, (snapshot,))
    if snapshot == _BATCHES:  # then only the snapshot has this version
        for store in made.stores():
            for key in [i.key for i in made.storage.list(layout.store_prefix(store))]:
                if key.endswith(".changelog"):
                    made.storage.delete([key])
    absent, *others = made.absent()
    with millpond.lookup(made.root) as state:
        asked.clear()
        assert state.get({"k": absent}) == []
        assert len(opened) == 1
        heads = [key for key in state_of(asked) if f"state/0/{opened[0].partition}/" not in key]
        assert len({key.split("/")[2] for key in heads}) == 7
        assert not [key for key in heads if key.endswith(".sst")]
        asked.clear()
        for k in others:
            assert state.get({"k": k}) == []
        assert sorted(opened) == made.stores()  # each by a key of its own
        own = {key.split("/")[2] for key in state_of(asked)}
        assert len(own) <= 7  # of the batch it is known, so nothing of the first is asked again


def test_what_is_known_of_a_batch_holds_for_each_reader_and_is_asked_again_of_the_next(
    tmp_path: Path, opened: list[StoreId], asked: list[str]
) -> None:
    made = Elsewhere(tmp_path / "query", partitions=8)
    made.build(_BATCHES, (2,))
    absent = made.absent()[0]
    stores = OpenStores(open_state(made.root, _BATCHES - 2))
    assert KeyReader(stores, None, None, None).find([{"k": absent}]).counts == [0]
    asked.clear()
    assert KeyReader(stores, None, None, None).find([{"k": absent}]).counts == [0]
    assert state_of(asked) == []
    later = stores.advanced(open_state(made.root, None))
    assert len(opened) == 1  # that one was taken along, and no other
    reader = KeyReader(later, None, None, None)
    for _ in range(2):
        told = refused(ErrorKind.UNSUPPORTED, reader.find, [{"k": absent}])
        assert "partition 6: a key of key group 3" in told.message
        assert len(opened) == 1
    stores.close()
    later.close()


def test_a_header_that_is_gone_is_told_as_the_store_is(
    tmp_path: Path, opened: list[StoreId]
) -> None:
    made = Arbitrary(tmp_path / "query", partitions=8)
    made.build(_BATCHES, (2,))
    stores = OpenStores(open_state(made.root, None))
    absent = made.absent()[0]
    reader = KeyReader(stores, None, None, None)
    assert reader.find([{"k": made._number(StoreId(0, 3), 1)}]).counts == [1]
    gone = next(s for s in made.stores() if s not in opened)
    (made.root / layout.store_key(gone, f"{_BATCHES}.changelog")).unlink()
    told = refused(ErrorKind.CHANGELOG_MISSING, reader.find, [{"k": absent}])
    assert f"store {gone}" in told.message
    stores.close()
