"""Look-ups in stores that cannot be rescaled: why says where their rows lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import millpond
from millpond.model.ids import StoreId
from millpond.model.json_fields import KeyGroupsInfo
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
