"""A place that is complete or absent: what is written appears under its name at once, or never.

On a file system everything is written into a hidden sibling, `.<name>.staging-<uuid>`, which is then renamed. Its directory is
locked while its process lives: what a killed one left is known by the lock it lost, and is removed by the next one that writes
to that name. On storage without rename, whoever writes claims the place first, with an object that one alone can make; the file that
makes the place what it is (the index of a savepoint, `metadata` of a Spark checkpoint) is written last, and then the claim is deleted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from millpond import layout
from millpond.errors import ConflictError, ErrorKind, InvalidInputError
from millpond.scratch import lock, remove_abandoned, scratch_directory
from millpond.storage import LocalStorage, Storage, open_storage, real_root
from millpond.storage.local import translate
from millpond.storage.owner import owner_record
from millpond.storage.place import place_record
from millpond.storage.split import SplitStorage

_SYNC_THREADS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target is: whoever else writes to it, another process, opens it anew.

    root: the hidden directory that is renamed in the end, or a URI. state: the place of the state, if it is not there.
    """

    root: str
    state: str | None = None

    @property
    def local(self) -> str | None:
        """The directory, if the root is one."""
        return self.root if os.path.isabs(self.root) else None

    @contextmanager
    def scratch(self, purpose: str) -> Iterator[str]:
        """Yield a directory for files on their way to the target: on its disk, where it has one."""
        try:
            with (
                scratch_directory(purpose)
                if self.local is None
                else self._beside(purpose) as directory
            ):
                yield directory
        except OSError as e:
            raise translate(e, f"writing to {self.root}", local=self.local is None) from e

    def _beside(self, purpose: str) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=f".millpond-{purpose}-", dir=self.local)

    def open(self) -> Storage:
        """Return its storage."""
        # Synced as a whole in the end: in any order is right as long as nobody sees it.
        storage = (
            LocalStorage(self.root, fsync=False)
            if self.local is not None
            else open_storage(self.root)
        )
        return storage if self.state is None else SplitStorage(storage, open_storage(self.state))


@dataclass(slots=True)
class Target:
    """Where to write while the block of `building` runs."""

    storage: Storage
    place: Place
    durable: set[str] = field(
        default_factory=set
    )  # keys that need no sync: they share blocks with files that are durable


def check_vacant(root: str) -> None:
    """Raise InvalidInputError (TARGET_NOT_EMPTY) if something is at `root`; an empty directory is nothing."""
    storage = open_storage(root)
    if isinstance(storage, LocalStorage):
        path = real_root(root)
        try:
            if not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path)):
                return
        except OSError as e:
            raise translate(e, f"looking at {path}") from e
    elif next(storage.list(""), None) is None:
        return
    elif next(storage.list(layout.CLAIM_KEY), None) is not None:
        raise _claimed(root)
    raise InvalidInputError(f"{root} is not empty", kind=ErrorKind.TARGET_NOT_EMPTY)


def _claimed(root: str) -> InvalidInputError:
    return InvalidInputError(
        f"{root} is being written to by another process, or one that did has died",
        kind=ErrorKind.TARGET_NOT_EMPTY,
        hint="Name another place; or, if no process writes there, delete all that is below it, and try again.",
    )


@contextmanager
def building(root: str, state: str | None = None) -> Iterator[Target]:
    """Yield where to write; when the block ends, `root` holds all of it, durably, and if it fails, nothing.

    Args:
        state: the place of a Spark checkpoint's state, if that is not in it; `root` remembers it.
    Raises: InvalidInputError: TARGET_NOT_EMPTY. UnavailableError: storage.
    """
    with _building(root) as target:
        if state is None:
            yield target
            return
        with _claiming(open_storage(state), state) as there:
            split = SplitStorage(target.storage, there)
            split.put_bytes(layout.STORAGE_KEY, place_record(state), if_absent=True)
            split.put_bytes(layout.OWNER_KEY, owner_record(root), if_absent=True)
            yield Target(split, Place(target.place.root, state), target.durable)


@contextmanager
def _building(root: str) -> Iterator[Target]:
    storage = open_storage(root)
    if isinstance(storage, LocalStorage):
        check_vacant(root)
        with _building_locally(real_root(root)) as target:
            yield target
        return
    with _claiming(storage, root):
        yield Target(storage, Place(root))


@contextmanager
def _claiming(storage: Storage, root: str) -> Iterator[Storage]:
    """Yield the storage at `root` to write to, which nobody else does meanwhile. It is emptied if the block fails."""
    check_vacant(root)
    try:
        storage.put_bytes(layout.CLAIM_KEY, uuid.uuid4().hex.encode(), if_absent=True)
    except ConflictError as e:
        raise _claimed(root) from e
    mine = [layout.CLAIM_KEY]
    try:
        # Another one may have begun and ended since the place was looked at.
        if any(info.key != layout.CLAIM_KEY for info in storage.list("")):
            raise InvalidInputError(f"{root} is not empty", kind=ErrorKind.TARGET_NOT_EMPTY)
        try:
            yield storage
        except BaseException:
            mine += [info.key for info in storage.list("")]
            raise
    finally:
        storage.delete(mine)


@contextmanager
def _emptied(storage: Storage) -> Iterator[None]:
    try:
        yield
    finally:
        empty(storage)


def empty(storage: Storage) -> None:
    """Delete all that is in `storage`."""
    storage.delete([info.key for info in storage.list("")])


@contextmanager
def _building_locally(path: str) -> Iterator[Target]:
    with _hidden_sibling(path) as staging:
        place = Place(staging)
        target = Target(place.open(), place)
        yield target
        try:
            _sync_tree(staging, target.durable)
            _publish(staging, path)
            _sync(os.path.dirname(path))
        except OSError as e:
            raise translate(e, f"writing {path}") from e


@contextmanager
def scratch_beside(root: str) -> Iterator[str]:
    """Yield a place for what is needed on the way to `root`: on the same storage, hidden, and removed when the block ends.

    What a killed process leaves is removed as that of `building` is; on storage without rename it stays.

    Raises: InvalidInputError: INVALID_ARGUMENT: `root` is the whole of a bucket. UnavailableError: storage.
    """
    storage = open_storage(root)
    if isinstance(storage, LocalStorage):
        with _hidden_sibling(real_root(root)) as staging:
            yield staging
        return
    parent, _, name = root.rstrip("/").rpartition("/")
    if not layout.parse_root(root).path.strip("/"):
        raise InvalidInputError(f"there is no place beside {root}", hint="Name a folder below it.")
    place = f"{parent}/.{name}.staging-{uuid.uuid4().hex}"
    with _emptied(open_storage(place)):
        yield place


@contextmanager
def _hidden_sibling(path: str) -> Iterator[str]:
    """Yield a new directory beside `path`, locked; unless it has another name when the block ends, it is removed."""
    parent, name = os.path.split(path)
    prefix = f".{name}.staging-"
    staging = os.path.join(parent, prefix + uuid.uuid4().hex)
    made = _make_directories(parent)
    locked = -1
    try:
        try:
            remove_abandoned(parent, prefix)
            os.mkdir(staging)
            locked = lock(staging)
        except OSError as e:
            raise translate(e, f"writing to {parent}") from e
        yield staging
    finally:
        if os.path.lexists(staging):
            shutil.rmtree(
                staging, ignore_errors=True
            )  # the next one that writes to that name removes the rest
        if locked >= 0:
            os.close(locked)
        for directory in reversed(made):
            with suppress(
                OSError
            ):  # it is in use: the target is in it, or something of somebody else's
                os.rmdir(directory)


def _publish(staging: str, path: str) -> None:
    try:
        os.rename(staging, path)  # replaces an empty directory, and no other
    except OSError as e:
        if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
            raise InvalidInputError(
                f"{path} was written to by somebody else meanwhile", kind=ErrorKind.TARGET_NOT_EMPTY
            ) from e
        raise


def _make_directories(path: str) -> list[str]:
    made: list[str] = []
    missing: list[str] = []
    while not os.path.isdir(path) and path != os.path.dirname(path):
        missing.append(path)
        path = os.path.dirname(path)
    try:
        for directory in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(directory)
                made.append(directory)
            _sync(os.path.dirname(directory))
    except OSError as e:
        raise translate(e, f"writing to {path}") from e
    return made


def _sync_tree(root: str, durable: set[str]) -> None:
    paths: list[str] = []
    for directory, _, names in os.walk(root):
        paths.append(directory)
        paths += [os.path.join(directory, name) for name in names]
    skipped = {os.path.join(root, key) for key in durable}
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(_sync, [path for path in paths if path not in skipped]))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_directory(path: str) -> None:
    """Remove the directory that `path` leads to so that at any moment it is there as a whole, or not at all. Raises: UnavailableError."""
    path = os.path.realpath(path)
    parent, name = os.path.split(path)
    hidden = os.path.join(parent, f".{name}.staging-{uuid.uuid4().hex}")
    try:
        locked = lock(path)
        try:
            os.rename(path, hidden)
            _sync(parent)
            shutil.rmtree(hidden)
        finally:
            os.close(locked)
    except OSError as e:
        raise translate(e, f"deleting {path}") from e
