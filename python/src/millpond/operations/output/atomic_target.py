"""An atomic target: a directory that is complete or absent, whatever happens.

On a file system a writer writes everything into a hidden sibling, `.<name>.staging-<uuid>`, and
then renames it. The writer holds a lock on the sibling while its process lives. A killed writer
loses its lock. The next one that writes to that name finds the sibling without a lock, and removes
it.

Object storage has no rename. There a writer first claims the target, with an object that only one
writer can make. It writes last the file that makes the target what it is: the index of a savepoint,
`metadata` of a Spark checkpoint. Then it deletes the claim.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    MillpondError,
    UnavailableError,
)
from millpond.format import layout, roots
from millpond.local.scratch import lock, make_locked, remove_abandoned, scratch_directory
from millpond.storage import LocalStorage, Storage, open_storage, real_root
from millpond.storage.base import read_if_there
from millpond.storage.local import (
    remove_empty_directories,
    sync_directory,
    translate,
    translate_restored,
)
from millpond.storage.owner import owner_record
from millpond.storage.place import place_record, read_place
from millpond.storage.split import SplitStorage

_SYNC_THREADS = 8
_KEPT_OF_NAME = 200  # bytes; a file system takes 255 of a name, and 42 come on top
_NOT_HERE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """Where a target is. Other processes that write to it open it by this.

    root: the hidden directory that is renamed in the end, or a URI.
    state: the place of the state, if the option storage.uri puts it elsewhere.
    """

    root: str
    state: str | None = None

    @property
    def local(self) -> str | None:
        """The root, if it is a directory of this machine."""
        return self.root if os.path.isabs(self.root) else None

    @contextmanager
    def scratch(self, purpose: str) -> Iterator[str]:
        """Yield a directory for files on their way to the target. If the target is on a disk, so is
        the directory.
        """
        try:
            with (
                scratch_directory(purpose) if self.local is None else self._beside(purpose)
            ) as directory:
                yield directory
        except OSError as e:
            told = translate_restored if self.local is None else translate
            raise told(e, f"writing to {self.root}") from e

    def _beside(self, purpose: str) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=f".millpond-{purpose}-", dir=self.local)

    def open(self) -> Storage:
        """Return its storage."""
        # The target is synced as a whole in the end. Until then nobody sees it. If it is removed
        # meanwhile, a new one would lack what is there already.
        storage = (
            LocalStorage(self.root, fsync=False, make_root=False)
            if self.local is not None
            else open_storage(self.root)
        )
        return storage if self.state is None else SplitStorage(storage, open_storage(self.state))


@dataclass(slots=True)
class AtomicTarget:
    """The target, while the block of `building` runs."""

    storage: Storage
    address: TargetAddress


def check_vacant(root: str, *, hint: str = "") -> None:
    """Raise InvalidInputError (TARGET_NOT_EMPTY) if something is at `root`.

    An empty directory counts as nothing.

    Args:
        hint: what helps if nobody is writing there; "": that of TARGET_NOT_EMPTY.
    """
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
    raise InvalidInputError(f"{root} is not empty", kind=ErrorKind.TARGET_NOT_EMPTY, hint=hint)


def _claimed(root: str) -> InvalidInputError:
    return InvalidInputError(
        f"{root} is being written to by another process, or one that did has died",
        kind=ErrorKind.TARGET_NOT_EMPTY,
        hint=(
            "Name another place; or, if no process writes there, delete all that is below it, and"
            " try again."
        ),
    )


@contextmanager
def building(root: str, state: str | None = None) -> Iterator[AtomicTarget]:
    """Yield the target to write to. When the block ends, `root` holds all of it, durably. If the
    block fails, `root` holds nothing.

    Args:
        state: the place of a Spark checkpoint's state, if that is elsewhere. `root` remembers it.
    Raises: InvalidInputError: TARGET_NOT_EMPTY. UnavailableError: storage.
    """
    written = False
    try:
        with _building(root) as target:
            if state is None:
                yield target
                return
            with _claiming(open_storage(state), state) as there:
                split = SplitStorage(target.storage, there)
                split.put_bytes(layout.STORAGE_KEY, place_record(state), if_absent=True)
                split.put_bytes(layout.OWNER_KEY, owner_record(root), if_absent=True)
                yield AtomicTarget(split, TargetAddress(target.address.root, state))
            written = True
    except BaseException:
        # `root` may stand although an error came after it got its name.
        if written and state is not None and read_place(open_storage(root)) != state:
            empty(open_storage(state))
        raise


@contextmanager
def _building(root: str) -> Iterator[AtomicTarget]:
    storage = open_storage(root)
    if isinstance(storage, LocalStorage):
        check_vacant(root)
        with _building_locally(real_root(root)) as target:
            yield target
        return
    with _claiming(storage, root):
        yield AtomicTarget(storage, TargetAddress(root))


@contextmanager
def _claiming(storage: Storage, root: str) -> Iterator[Storage]:
    """Yield the storage at `root`, claimed: nobody else writes to it meanwhile.

    If the block fails, this empties the storage. Somebody may have taken a process that stood still
    for a killed one, and have emptied it before: then what is there is another writer's.

    Raises: InvalidInputError: TARGET_NOT_EMPTY: something is there, or another writer's by the end.
    """
    check_vacant(root)
    claim = uuid.uuid4().hex.encode()
    try:
        storage.put_bytes(layout.CLAIM_KEY, claim, if_absent=True)
    except ConflictError as e:
        raise _claimed(root) from e

    def is_own() -> bool:
        return read_if_there(storage, layout.CLAIM_KEY) == claim

    try:
        # Another writer may have begun and ended since `check_vacant`.
        if any(info.key != layout.CLAIM_KEY for info in storage.list("")):
            raise InvalidInputError(f"{root} is not empty", kind=ErrorKind.TARGET_NOT_EMPTY)
    except BaseException:
        if is_own():
            storage.delete([layout.CLAIM_KEY])
        raise
    try:
        yield storage
    except BaseException:
        if is_own():
            empty(storage)
        raise
    if not is_own():
        raise _taken(root)
    storage.delete([layout.CLAIM_KEY])


@contextmanager
def _emptied(storage: Storage) -> Iterator[None]:
    try:
        yield
    finally:
        empty(storage)


def empty(storage: Storage) -> None:
    """Delete all that is in `storage`, a claim last: without it a part might pass for the whole.

    On a file system its directories go, too: they would pass for something at the target.
    """
    keys = [info.key for info in storage.list("")]
    storage.delete([key for key in keys if key != layout.CLAIM_KEY])
    if layout.CLAIM_KEY in keys:
        storage.delete([layout.CLAIM_KEY])
    if isinstance(storage, LocalStorage):
        remove_empty_directories(storage.root)


@contextmanager
def _building_locally(path: str) -> Iterator[AtomicTarget]:
    with _hidden_sibling(path) as staging:
        address = TargetAddress(staging)
        try:
            yield AtomicTarget(address.open(), address)
            _sync_tree(staging)
            _publish(staging, path)
        except (MillpondError, OSError) as e:
            if not os.path.isdir(staging):
                raise _removed(staging) from e
            if isinstance(e, OSError):
                raise translate(e, f"writing {path}") from e
            raise
        try:
            sync_directory(os.path.dirname(path))
        except OSError as e:
            raise translate(e, f"writing {path}") from e


def _removed(staging: str) -> UnavailableError:
    return UnavailableError(
        f"somebody else removed {staging} meanwhile",
        kind=ErrorKind.LOCAL_FILES_LOST,
        hint="Run the command again, and no other one with the same target at the same time.",
    )


@contextmanager
def scratch_beside(root: str) -> Iterator[str]:
    """Yield a hidden directory on the storage of `root`, for files on their way there.

    This removes it when the block ends. What a killed process leaves is removed as in `building`;
    on object storage it stays.

    Raises: InvalidInputError: INVALID_ARGUMENT: `root` is a whole bucket. UnavailableError:
        storage.
    """
    storage = open_storage(root)
    if isinstance(storage, LocalStorage):
        with _hidden_sibling(real_root(root)) as staging:
            yield staging
        return
    parent, _, name = root.rstrip("/").rpartition("/")
    if not roots.parse_root(root).path.strip("/"):
        raise InvalidInputError(f"there is no place beside {root}", hint="Name a folder below it.")
    beside = f"{parent}/{_hidden_prefix(name)}{uuid.uuid4().hex}"
    with _emptied(open_storage(beside)):
        yield beside


def _hidden_prefix(name: str) -> str:
    """Return what the names of hidden siblings of `name` begin with. There a long name ends early,
    between two characters.
    """
    while len(os.fsencode(name)) > _KEPT_OF_NAME:
        name = name[:-1]
    return f".{name}.staging-"


@contextmanager
def _hidden_sibling(path: str) -> Iterator[str]:
    """Yield a new locked directory beside `path`.

    When the block ends, this removes it, unless it has another name by then.
    """
    parent, name = os.path.split(path)
    prefix = _hidden_prefix(name)

    def make() -> str:
        directory = os.path.join(parent, prefix + uuid.uuid4().hex)
        os.mkdir(directory)
        return directory

    staging = ""
    made = _make_directories(parent)
    locked = -1
    try:
        try:
            remove_abandoned(parent, prefix)
            staging, locked = make_locked(make)
        except OSError as e:
            raise _unwritable(e, parent) from e
        yield staging
    finally:
        if os.path.lexists(staging):
            # The next one that writes to that name removes what is left.
            shutil.rmtree(staging, ignore_errors=True)
        if locked >= 0:
            os.close(locked)
        for directory in reversed(made):
            with suppress(OSError):  # it holds the target, or somebody else's files
                os.rmdir(directory)


def _publish(staging: str, path: str) -> None:
    try:
        os.rename(staging, path)  # replaces an empty directory, and no other
    except OSError as e:
        if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
            raise _taken(path) from e
        raise


def _taken(root: str) -> InvalidInputError:
    return InvalidInputError(
        f"{root} was written to by somebody else meanwhile", kind=ErrorKind.TARGET_NOT_EMPTY
    )


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
            sync_directory(os.path.dirname(directory))
    except OSError as e:
        raise _unwritable(e, path) from e
    return made


def _unwritable(e: OSError, place: str) -> MillpondError:
    """Return the error for a target that cannot be made in `place`."""
    if e.errno not in _NOT_HERE:
        return translate(e, f"writing to {place}")
    return UnavailableError(
        f"nothing can be made in {place}: {e.strerror}",
        kind=ErrorKind.STORAGE_DENIED,
        hint="Name a place in which this user may make a directory.",
    )


def _sync_tree(root: str) -> None:
    """Sync all files, those that share blocks with a query's, too: with commit.fsync=false it has
    not synced them.
    """
    directories: list[str] = []
    files: list[str] = []
    for directory, _, names in os.walk(root):
        directories.append(directory)
        files += [os.path.join(directory, name) for name in names]
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(_sync_file, files))
        list(pool.map(sync_directory, directories))


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_directory(path: str) -> None:
    """Remove the directory that `path` leads to. At any moment it is there as a whole, or absent.

    Raises: UnavailableError.
    """
    path = os.path.realpath(path)
    parent, name = os.path.split(path)
    hidden = os.path.join(parent, _hidden_prefix(name) + uuid.uuid4().hex)
    try:
        locked = lock(path)
        try:
            os.rename(path, hidden)
            sync_directory(parent)
            shutil.rmtree(hidden)
        finally:
            os.close(locked)
    except OSError as e:
        raise translate(e, f"deleting {path}") from e
