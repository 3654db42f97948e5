"""A look at a query whose files are on an object storage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.depth import quick_first
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.model.ids import StoreId, VersionId
from millpond.query.from_checkpoint import look
from millpond.query.survey import survey
from millpond.storage import MemoryStorage, ObjectInfo
from tests.checkpoints import CheckpointBuilder, version_id
from tests.refusals import refused
from tests.row_checkpoints import HashedBuilder

_FAILS_AFTER_SECONDS = 5  # a test that fails ends then


class Objects(MemoryStorage):
    """The files of a query. A store is listed when `before` has returned."""

    def __init__(self, built: CheckpointBuilder) -> None:
        super().__init__()
        for info in built.storage.list(""):
            self.put_bytes(info.key, built.storage.read(info.key))
        self.stores = {layout.store_prefix(store): store for store in built.stores()}

    def before(self, store: StoreId) -> None:
        """Do what the test wants."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if prefix in self.stores:
            self.before(self.stores[prefix])
        return super().list(prefix)


@pytest.mark.parametrize("spark_format", quick_first([2, 1]))
def test_stores_are_planned_side_by_side(tmp_path: Path, spark_format: int) -> None:
    """One came after the other, and of many the last ones had expired by then."""
    built = HashedBuilder(tmp_path / "query", partitions=4, spark_format=spark_format).build()
    two = threading.Barrier(2)

    class Together(Objects):
        def before(self, store: StoreId) -> None:
            two.wait(_FAILS_AFTER_SECONDS)

    storage = Together(built)
    image = look(storage, survey(storage, "it"), "it")
    assert image == look(built.storage, survey(built.storage, "it"), "it")
    (operator,) = image.operators
    assert [store.partition for store in operator.stores] == [0, 1, 2, 3]


def test_the_first_store_that_is_damaged_is_told(tmp_path: Path) -> None:
    built = HashedBuilder(tmp_path / "query", partitions=4, spark_format=2).build()
    later = threading.Event()

    class Later(Objects):
        def before(self, store: StoreId) -> None:
            if store.partition == 3:
                later.set()
            if store.partition == 1:
                later.wait(_FAILS_AFTER_SECONDS)

    for partition in (1, 3):
        store = StoreId(0, partition)
        newest = VersionId(6, version_id(store, 6))
        built.storage.delete([layout.changelog_key(store, newest, 2)])
    storage = Later(built)
    told = refused(ErrorKind.CHANGELOG_MISSING, look, storage, survey(storage, "it"), "it")
    assert "store 0/1: " in told.message and later.is_set()
