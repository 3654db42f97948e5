"""Follows a query: keeps the stores of its newest committed batch open, and swaps them when it
commits. Requests go on meanwhile: each one ends on the batch on which it began.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from millpond.errors import ErrorKind, InternalError, MillpondError, error
from millpond.query.erasing import read_erasures
from millpond.query.next_batch import Newest, Setup, newest_entry, next_image, read_setup
from millpond.state.key_reader import KeyReader
from millpond.state.open_stores import OpenStores
from millpond.state.selection import Opened, open_state
from millpond.storage.given import given, reached_by

log = logging.getLogger(__name__)

# A query may have collected these files since the server saw its batch, or a key may be erased.
_PASSING = {
    ErrorKind.CHANGELOG_MISSING,
    ErrorKind.SST_MISSING,
    ErrorKind.OBJECT_NOT_FOUND,
    ErrorKind.VERSION_EXPIRED,
    ErrorKind.VERSION_NOT_FOUND,
    ErrorKind.ERASE_UNFINISHED,
}
_TRIES = 3
_STOP_SECONDS = 5

Table = tuple[int | str | None, str | None, str | None]
"""Operator, store, column family; None: there is only one."""


class Held:
    """The state after one batch, open for look-ups. Threads share it.

    Attributes:
        batch: its number.
        batch_time_ms: when it began, since the epoch.
        opened: the state.
    """

    def __init__(self, stores: OpenStores, before: Held | None = None) -> None:
        image = stores.opened.image
        self.batch, self.batch_time_ms = image.batch, image.timestamp_ms
        self.opened = stores.opened
        self.stores = stores
        self._readers: dict[Table, KeyReader] = {}
        # The names of a join's key columns: to find them takes a look at rows.
        self._names: dict[Table, Mapping[str, str]] = {}
        if before is not None:
            self._names |= before._names
            # Those that a look-up has found. None is found here: that may fail, and the batch of
            # `before` may be gone.
            readers = before._readers.copy().items()
            self._names |= {table: names for table, r in readers if (names := r.names)}
        self._lock = threading.Lock()
        self._users = 1

    def reader(self, table: Table) -> KeyReader:
        """Return the reader of a column family. Raises: as `KeyReader`."""
        reader = self._readers.get(table)
        if reader is None:
            made = KeyReader(self.stores, *table, names=self._names.get(table))
            reader = self._readers.setdefault(table, made)  # another thread may have been first
        return reader

    def take(self) -> bool:
        """Keep it open until `release`. Returns: False: it is closed."""
        with self._lock:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Close it if nobody else uses it."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.stores.close()


class Following:
    """The newest committed batch of the query at `path`; of a savepoint, its batch.

    Args:
        path: Spark checkpoint or savepoint.
        every_ms: how often to look for a new commit.
    Raises: as `millpond.lookup`.
    Attributes:
        follows: whether there will be other batches.
        problem: why the last look failed; None: it did not.
        every_ms: as given.
    """

    def __init__(self, path: str | os.PathLike[str], *, every_ms: int) -> None:
        self._path = path
        self._told = given()  # other threads look, too
        self.every_ms = every_ms
        self.problem: MillpondError | None = None
        self._step = threading.Lock()  # one step at a time
        self._stopped = threading.Event()
        self._seen: Newest | None = None
        self._setup: Setup = ()
        opened = open_state(path, None)
        self.follows = opened.index is None
        if self.follows:
            self._seen, self._setup, opened = self._whole(opened)
        self._held = Held(OpenStores(opened))
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._follow, name="millpond-follow", daemon=True)

    def start(self) -> None:
        """Follow from now on, in a thread."""
        if self.follows:
            self._thread.start()

    def stop(self, wait_s: float = _STOP_SECONDS) -> bool:
        """End the thread, and close what is open.

        Args:
            wait_s: how long to wait for the thread, which may be reading.
        Returns: False: it reads on, and may have begun other threads for that.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        self._held.release()
        return not self._thread.is_alive()

    @property
    def looked_ms_ago(self) -> int:
        """How long ago the last look for a new commit succeeded; 0 for a savepoint."""
        return int((time.monotonic() - self._looked) * 1000) if self.follows else 0

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Yield the newest batch. It stays open until the end of the block.

        Raises: UnavailableError: STORE_CLOSED: it was stopped.
        """
        held = self._held
        while not held.take():  # the next batch has just taken its place
            if self._stopped.is_set():
                raise error(ErrorKind.STORE_CLOSED, "the server has stopped")
            held = self._held
        try:
            yield held
        finally:
            held.release()

    def again(self, failed: Held, error: MillpondError, tries: int) -> bool:
        """Whether to ask again, because the query has gone on and collected what was missing, or an
        erasure has ended.

        Args:
            tries: how often the request was tried.
        """
        if not self.follows or error.kind not in _PASSING or tries >= _TRIES:
            return False
        self.look()
        return self._held is not failed

    def look(self) -> None:
        """Look for a new commit now. What goes wrong becomes `problem`."""
        with self._step, reached_by(self._told):
            try:
                self._advance()
            except MillpondError as e:
                self._failed(e)
            except Exception as e:
                log.error("cannot follow the query: %s", type(e).__name__, exc_info=True)
                self._failed(
                    InternalError(
                        f"{type(e).__name__} while following the query",
                        hint="Report it with the traceback that the server has logged.",
                    )
                )
            else:
                self._looked = time.monotonic()
                if self.problem is not None:
                    log.warning("follows the query again, at batch %s", self._held.batch)
                self.problem = None

    def _failed(self, e: MillpondError) -> None:
        if self.problem is None or self.problem.kind is not e.kind:
            log.warning("stays at batch %s: %s %s", self._held.batch, e.kind, e.message)
        self.problem = e

    def _follow(self) -> None:
        while not self._stopped.wait(self.every_ms / 1000):
            self.look()

    def _advance(self) -> None:
        storage = self._held.opened.storage
        newest = newest_entry(storage)
        before = self._held
        erased = before.stores.erased
        if newest is not None and newest == self._seen and not erased:
            return
        opened = None
        # An older batch, or the same one written again: somebody went back. Nothing of what is open
        # is to be trusted then, nor if a key was erased.
        forward = newest is not None and self._seen is not None and newest.batch > self._seen.batch
        forward = forward and not erased
        if newest is not None and forward:
            operators = [operator.operator for operator in before.opened.image.operators]
            setup = read_setup(storage, operators)
            if setup == self._setup:
                image = next_image(storage, before.opened.image, newest.batch)
                opened = replace(before.opened, image=image) if image is not None else None
        if opened is None:
            newest, setup, opened = self._whole(None)
        stores = before.stores.advanced(opened) if forward else OpenStores(opened)
        self._held = Held(stores, before if forward else None)
        self._seen, self._setup = newest, setup
        before.release()

    def _whole(self, opened: Opened | None) -> tuple[Newest | None, Setup, Opened]:
        """Look at the whole query. What is read first tells whether something changes meanwhile."""
        if opened is None:
            opened = open_state(self._path, None)
        storage = opened.storage
        while True:
            newest = newest_entry(storage)
            operators = [operator.operator for operator in opened.image.operators]
            setup = read_setup(storage, operators)
            batch = newest.batch if newest is not None else None
            erasures = read_erasures(storage)
            opened = replace(open_state(self._path, batch), erasures=erasures)
            if [operator.operator for operator in opened.image.operators] == operators:
                return newest, setup, opened
