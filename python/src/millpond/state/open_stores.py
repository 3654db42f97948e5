"""Keeps the stores of a state open for single reads, and takes them along to the next batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from millpond.errors import ConflictError, ErrorKind, FormatError, NotFoundError
from millpond.format.changelog import ChangelogHeader
from millpond.format.manifest import Manifest
from millpond.local.scratch import scratch_directory
from millpond.model.ids import StoreId
from millpond.query.erasing import unerased
from millpond.query.expected import check_written_for
from millpond.query.glance import sizes_of
from millpond.query.planned_stores import each
from millpond.state.selection import Opened
from millpond.store.by_name import NeedsListing, UnlistedFiles
from millpond.store.entries import StoreVersion, newest_by_name, open_version
from millpond.store.fetched_files import FetchedFiles
from millpond.store.files import StoreFiles, is_local
from millpond.store.partial_database import FETCHES
from millpond.store.point_reads import PointReader
from millpond.store.restore.plan import plan_restore

_Result = TypeVar("_Result")
# Beside the newest one. If there are more, a newer snapshot may be worth the request of a listing.
_MOST_CHANGELOGS = 2


class OpenStores:
    """The stores of a state after one batch that somebody has asked for. Threads may share it.

    Args:
        whole: False: from a remote storage fetch an SST when a key needs it.
    Attributes:
        opened: the state.
        erased: a key was erased since: no store can be opened, or taken along, any more.
    """

    def __init__(self, opened: Opened, *, whole: bool = True) -> None:
        self.opened = opened
        self.erased = False
        self._whole = whole
        self._images = {
            StoreId(op.operator, image.partition, image.name): image
            for op in opened.image.operators
            for image in op.stores
        }
        self._format = opened.image.spark_checkpoint_format
        self._sums = opened.sums
        self._readers: dict[StoreId, PointReader] = {}
        self._replaced: list[PointReader] = []
        self._locks = {store: threading.Lock() for store in self._images}
        self._misplaced: dict[tuple[int, str], str | None] = {}

    def partitions(self, operator: int, name: str) -> int:
        """Return how many partitions the stores of an operator have."""
        return sum((s.operator, s.name) == (operator, name) for s in self._images)

    def get(self, store: StoreId) -> PointReader:
        """Return the reader of a store; open it if it is not open yet.

        Raises: as `restore.plan.plan_restore` and `PointReader`. ConflictError: ERASE_UNFINISHED:
            a key was, or is being, erased since the state was opened.
        """
        reader = self._readers.get(store)
        if reader is None:
            with self._locks[store]:  # others go on with other stores
                reader = self._readers.get(store)
                if reader is None:
                    reader = self._checked(partial(self._open, store, None))
                    self._readers[store] = reader
        return reader

    def misplaced(self, operator: int, name: str) -> str | None:
        """Return which of an operator's stores has keys elsewhere than where their bytes say, and
        why; None: none has. Reads of each store its newest header alone, and that once.

        Raises: as `get`.
        """
        of = (operator, name)
        if of not in self._misplaced:
            with self._unerased():
                self._misplaced[of] = self._ask_misplaced(operator, name)
        return self._misplaced[of]

    def _ask_misplaced(self, operator: int, name: str) -> str | None:
        stores = [StoreId(operator, n, name) for n in range(self.partitions(operator, name))]
        for store, newest in zip(stores, self._each(self._newest, stores), strict=True):
            if newest is not None and not newest.key_groups.scalable:
                return f"partition {store.partition}: {newest.key_groups.reason}"
        return None

    def _each(self, call: Callable[[StoreId], _Result], stores: Sequence[StoreId]) -> list[_Result]:
        local = all(is_local(self.opened.storage, store) for store in stores)
        return each(call, stores, local=local)

    def _newest(self, store: StoreId) -> ChangelogHeader | Manifest | None:
        """Return what describes a store; None: it is empty. Does not open it."""
        reader = self._readers.get(store)
        if reader is not None:
            return reader.version.plan.newest
        files = StoreFiles(self.opened.storage, store, self._format)
        target = self._images[store].version_id(self._format)
        try:
            newest = newest_by_name(files, target)
        except (FormatError, NotFoundError):  # an older snapshot may make up for it, or is told
            newest = open_version(files, target).plan.newest
        self._check_partitions(store, newest)
        return newest

    def list_again(self, store: StoreId, failed: PointReader) -> bool:
        """Open a store anew, by a listing of its files: one that the reader needs is not there.

        Returns: False: the reader has looked at a listing.
        Raises: as `get`.
        """
        with self._locks[store]:
            if self._readers.get(store) is failed:
                if failed.version.files.is_listed:
                    return False
                self._readers[store] = self._checked(partial(self._listed, store))
                self._replaced.append(failed)  # other threads may still use it
        return True

    def advanced(self, opened: Opened) -> OpenStores:
        """Return the stores of a later state. Those that are open here are open there, too; they
        share what both need. Both must be closed.

        Raises: as `get`.
        """
        # What is taken along was read before any erasure that `opened` knows of.
        later = OpenStores(replace(opened, erasures=self.opened.erasures))
        before = {s: reader for s, reader in self._readers.copy().items() if s in later._images}
        try:
            with self._unerased():
                later._each(lambda store: later._advance(store, before[store]), [*before])
        except BaseException:
            later.close()
            raise
        return later

    def close(self) -> None:
        """Close the open stores."""
        for reader in (*self._readers.values(), *self._replaced):
            reader.close()
        self._readers.clear()
        self._replaced.clear()

    def _checked(self, opening: Callable[[], PointReader]) -> PointReader:
        """Return the reader that `opening` returns, unless a key was erased meanwhile."""
        with ExitStack() as failed:
            with self._unerased():
                reader = opening()
                failed.callback(reader.close)
            failed.pop_all()
        return reader

    @contextmanager
    def _unerased(self) -> Iterator[None]:
        """Raise ConflictError at the end of the block if a key was erased since the state was
        opened: some of the files that were read are of before that, others of after it.
        """
        opened = self.opened
        if opened.erasures is None:
            yield
            return
        try:
            with unerased(opened.storage, opened.place, opened.erasures, announced=True):
                yield
        except ConflictError as e:
            self.erased = self.erased or e.kind is ErrorKind.ERASE_UNFINISHED
            raise

    def _advance(self, store: StoreId, before: PointReader) -> None:
        self._readers[store] = self._open(store, before)

    def _open(self, store: StoreId, before: PointReader | None) -> PointReader:
        storage = self.opened.storage
        target = self._images[store].version_id(self._format)
        files = StoreFiles(storage, store, self._format)
        later = before.advanced(files, target) if before is not None else None
        if later is not None:
            return later
        if is_local(storage, store) or not self.opened.glanced:
            return self._listed(store)
        sums, index = self._sums, self.opened.index
        with scratch_directory("open") as directory:
            if index is None:
                by_name = UnlistedFiles(
                    storage,
                    store,
                    self._format,
                    local_dir=directory,
                    parallel=FETCHES,
                    most=_MOST_CHANGELOGS,
                )
                with suppress(NeedsListing):
                    return self._reader(StoreVersion(by_name, plan_restore(by_name, target), sums))
            fetched = FetchedFiles(
                storage,
                store,
                self._format,
                local_dir=directory,
                sizes=sizes_of(index) if index is not None else None,
            )
            return self._reader(open_version(fetched, target, sums))

    def _listed(self, store: StoreId) -> PointReader:
        files = StoreFiles(self.opened.storage, store, self._format)
        target = self._images[store].version_id(self._format)
        return self._reader(open_version(files, target, self._sums))

    def _reader(self, version: StoreVersion) -> PointReader:
        self._check_partitions(version.files.store, version.plan.newest)
        return PointReader(version, whole=self._whole)

    def _check_partitions(self, store: StoreId, newest: ChangelogHeader | Manifest | None) -> None:
        image = self.opened.image
        if self.opened.glanced and self.opened.index is None:
            partitions = self.partitions(store.operator, store.name)
            if partitions == image.partitions:  # else all of its state is in one
                check_written_for(store, newest, image.batch, partitions)
