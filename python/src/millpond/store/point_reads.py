"""Reads single entries of one store at one version: the blocks of its snapshot that can hold them,
and the changelogs above. Goes on to later versions by their changelogs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from millpond.errors import FormatError, NotFoundError
from millpond.local import rocks
from millpond.local.scratch import scratch_directory
from millpond.model.ids import VersionId
from millpond.store.entries import (
    Entry,
    StoreVersion,
    changes_of,
    databases_of,
    name_of_snapshot,
    parts_of,
)
from millpond.store.files import StoreFiles, is_local
from millpond.store.layers import Layer, Layers, Missing, looked_up, stacked
from millpond.store.overlay import Appended
from millpond.store.partial_database import PartialDatabase
from millpond.store.restore.execute import Fetching
from millpond.store.restore.plan import RestorePlan, plan_changes

# A reader takes so many changes along, of so many bytes, before it begins anew with a newer
# snapshot.
_MOST_CHANGES = 100_000
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Most:
    """How much may be read.

    size_bytes: of physical keys and values.
    """

    rows: int
    size_bytes: int

    def is_exceeded(self, rows: int, size_bytes: int) -> bool:
        """Return whether this is more."""
        return rows > self.rows or size_bytes > self.size_bytes


class PointReader:
    """An open store. It keeps the changes above the snapshot in memory, and links or copies of the
    snapshot's files in a scratch directory until it is closed. Threads may share it.

    Args:
        whole: False: from a remote storage it fetches an SST when a key needs it. The query may
            have collected that one by then.
    Attributes:
        version: what it reads.
    Raises: as `store.entries.entry_chunks`.
    """

    def __init__(self, version: StoreVersion, *, whole: bool = True) -> None:
        self.version = version
        self._snapshot = _Snapshot(version, whole)
        self._layers: Layers = (Layer(self._snapshot.changes),)
        self._snapshot.changes = {}  # the layers that follow may become one without them

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a physical key; None: there is none."""
        change = looked_up(self._layers, key)
        if isinstance(change, Missing):
            return self._snapshot.get(key)
        if isinstance(change, Appended):
            return (self._snapshot.get(key) or b"") + change.value
        return change

    def starting_with(self, prefix: bytes, limit: Most | None = None) -> list[Entry]:
        """Return the entries whose physical keys start with `prefix`, ordered by key.

        Args:
            limit: if there is more, more than that is returned, but maybe not all, and not the
                first. None: all is returned.
        """
        changed = {key for layer in self._layers for key in layer.starting_with(prefix)}
        found = dict(self._snapshot.starting_with(prefix, changed, limit))
        for key in changed:
            change = looked_up(self._layers, key)
            if isinstance(change, Appended):
                found[key] = (found.get(key) or b"") + change.value
            elif isinstance(change, bytes):
                found[key] = change
            else:
                found.pop(key, None)
        return sorted(found.items())

    def advanced(self, files: StoreFiles, target: VersionId) -> PointReader | None:
        """Return a reader of a later version that shares this one's snapshot, and reads the
        changelogs between the two alone. Both must be closed.

        Args:
            files: of the same store. It is listed again.
            target: in Spark checkpoint format 1 its id is "".
        Returns: None: the version does not build on this one, or it pays to begin with a newer
            snapshot.
        Raises: as the constructor.
        """
        now = self.version.plan.target
        if target.version <= now.version:
            return None
        files.refresh()
        begun = self._snapshot.number
        many = (
            sum(len(layer.changes) for layer in self._layers) > _MOST_CHANGES
            or sum(layer.size_bytes for layer in self._layers) > _MOST_BYTES
        )
        if many and any(begun < number <= target.version for number in files.manifest_versions()):
            return None
        try:
            headers = plan_changes(files, now.version + 1, target)
        except (FormatError, NotFoundError):
            return None  # a snapshot may make up for it; if not, opening the version tells
        if headers[0].empty_base or headers[0].parent != now:
            return None
        plan = RestorePlan(
            target=headers[-1].version_id, base=now, manifest=None, headers=headers, rejected=()
        )
        version = StoreVersion(files, plan)
        with scratch_directory("follow") as directory:
            changes = changes_of(version, directory, in_memory=True).taken()
        result = object.__new__(PointReader)
        result.version = version
        result._snapshot = self._snapshot.shared()
        result._layers = stacked(self._layers, Layer(changes))
        return result

    def close(self) -> None:
        """Remove the scratch directory, unless another reader shares it."""
        self._snapshot.release()


_Database = rocks.Reader | PartialDatabase
Owns = Callable[[bytes], bool] | None


def _databases(
    version: StoreVersion, directory: str, whole: bool
) -> Iterator[tuple[_Database, Owns]]:
    """Yield the databases of the snapshot, each with what tells its keys.

    Args:
        directory: for their files; names that begin with it are free.
    """
    if whole or is_local(version.files.storage, version.files.store):
        # RocksDB checks the blocks that it reads. To check whole files would be to read them.
        fetching = Fetching(verify_checksums=False)
        for database in databases_of(version, directory, fetching):
            yield rocks.Reader(database.directory, name=database.name), database.owns
        return
    for number, part in enumerate(parts_of(version)):
        place = f"{directory}-part-{number}"
        name = name_of_snapshot(version)
        yield PartialDatabase(version.files.storage, part, place, name=name), part.owns


class _Snapshot:
    """The databases that readers share. The last one to release them closes them.

    Attributes:
        number: the snapshot's version; 0: there is none.
        changes: what the changelogs above change. For the first reader alone.
    """

    def __init__(self, version: StoreVersion, whole: bool) -> None:
        manifest = version.plan.manifest
        self.number = manifest.version if manifest is not None else 0
        self._lock = threading.Lock()
        self._users = 1
        with ExitStack() as stack:
            directory = stack.enter_context(scratch_directory("lookup"))
            self.changes = changes_of(version, directory, in_memory=True).taken()
            self._databases: list[tuple[_Database, Owns]] = []
            for database, owns in _databases(version, f"{directory}/db", whole):
                stack.callback(database.close)
                self._databases.append((database, owns))
            self._stack = stack.pop_all()

    def get(self, key: bytes) -> bytes | None:
        for reader, owns in self._databases:
            if owns is None or owns(key):
                return reader.get(key)
        return None

    def starting_with(
        self, prefix: bytes, changed: Container[bytes], limit: Most | None
    ) -> list[Entry]:
        """Return entries, until those that are not `changed` are more than the limit."""
        found: list[Entry] = []
        rows = size_bytes = 0
        for reader, owns in self._databases:
            for entry in reader.starting_with(prefix):
                if owns is not None and not owns(entry[0]):
                    continue
                found.append(entry)
                if limit is not None and entry[0] not in changed:
                    rows += 1
                    size_bytes += len(entry[0]) + len(entry[1])
                    if limit.is_exceeded(rows, size_bytes):
                        return found
        return found

    def shared(self) -> _Snapshot:
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._stack.close()
