"""Keeps the stores of a state open for single reads, and takes them along to the next batch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from millpond.model.ids import StoreId, VersionId
from millpond.query.image import StoreImage
from millpond.state.selection import Opened
from millpond.store.entries import open_version
from millpond.store.files import StoreFiles
from millpond.store.point_reads import PointReader

_REQUESTS = 16  # stores that are opened at once; each mostly waits for the object storage


class OpenStores:
    """The stores of a state after one batch that somebody has asked for. Threads may share it.

    Attributes:
        opened: the state.
    """

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._images = {
            StoreId(op.operator, image.partition, image.name): image
            for op in opened.image.operators
            for image in op.stores
        }
        self._format = opened.image.spark_checkpoint_format
        self._readers: dict[StoreId, PointReader] = {}
        self._locks = {store: threading.Lock() for store in self._images}

    def partitions(self, operator: int, name: str) -> int:
        """Return how many partitions the stores of an operator have."""
        return sum((s.operator, s.name) == (operator, name) for s in self._images)

    def get(self, store: StoreId) -> PointReader:
        """Return the reader of a store; open it if it is not open yet.

        Raises: as `restore.plan.plan_restore` and `PointReader`.
        """
        reader = self._readers.get(store)
        if reader is None:
            with self._locks[store]:  # others go on with other stores
                reader = self._readers.get(store)
                if reader is None:
                    reader = self._readers[store] = self._open(store, None)
        return reader

    def advanced(self, opened: Opened) -> OpenStores:
        """Return the stores of a later state. Those that are open here are open there, too; they
        share what both need. Both must be closed.

        Raises: as `get`.
        """
        later = OpenStores(opened)
        before = {s: reader for s, reader in self._readers.copy().items() if s in later._images}
        calls = [partial(later._advance, store, reader) for store, reader in before.items()]
        try:
            if opened.storage.local_path("metadata") is not None:
                for call in calls:
                    call()
            else:
                with ThreadPoolExecutor(_REQUESTS) as pool:
                    for waiting in [pool.submit(call) for call in calls]:
                        waiting.result()
        except BaseException:
            later.close()
            raise
        return later

    def close(self) -> None:
        """Close the open stores."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _advance(self, store: StoreId, before: PointReader) -> None:
        self._readers[store] = self._open(store, before)

    def _open(self, store: StoreId, before: PointReader | None) -> PointReader:
        files = StoreFiles(self.opened.storage, store, self._format)
        target = _version(self._images[store], self._format)
        later = before.advanced(files, target) if before is not None else None
        if later is not None:
            return later
        return PointReader(open_version(files, target, self.opened.sums))


def _version(image: StoreImage, spark_format: int) -> VersionId:
    return VersionId(image.version, image.id if spark_format > 1 else "")
