"""The live entries of one store at one version, in the order of keys: its snapshot, with the changelogs above it laid over."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millpond.changelog import ChangelogReader, Op
from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.ids import VersionId
from millpond.json_fields import ColumnFamily
from millpond.local import rocks
from millpond.restore.execute import lay_out
from millpond.restore.plan import RestorePlan, plan_restore
from millpond.store_files import StoreFiles

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """One store at one version: which column families it has, and where its entries come from."""

    files: StoreFiles
    plan: RestorePlan

    @property
    def families(self) -> tuple[ColumnFamily, ...]:
        """Its column families, without those that the job dropped."""
        last = self.plan.headers[-1] if self.plan.headers else self.plan.manifest
        return tuple(family for family in last.column_families if not family.removed) if last is not None else ()


def open_version(files: StoreFiles, target: VersionId) -> StoreVersion:
    """Plan how to read `target`. Raises: as `restore.plan.plan_restore`."""
    files.refresh()
    return StoreVersion(files, plan_restore(files, target))


@contextmanager
def entries(version: StoreVersion) -> Iterator[Iterator[Entry]]:
    """Yield an iterator over all entries (physical key, value), ascending by key.

    SSTs are read as a stream; what changelogs above the snapshot say is held in memory.

    Raises: FormatError: a file is damaged. NotFoundError: it is gone. UnsupportedError: rocksdict is not installed.
    """
    overlay = _overlay(version)
    manifest = version.plan.manifest
    if manifest is None:
        yield _merged(iter(()), overlay)
        return
    name = version.files.manifest_name(manifest.version_id)
    with tempfile.TemporaryDirectory(prefix="millpond-read-") as directory:
        database = f"{directory}/db"
        lay_out(version.files.storage, manifest, name, database, verify_checksums=False)
        below = rocks.scan(database, name=f"store {version.files.store}: {name}")
        yield _merged(below, overlay) if overlay else below


@dataclass(frozen=True, slots=True)
class _Appended:
    """Bytes that follow the value that the snapshot has."""

    value: bytes


_Change = bytes | _Appended | None  # the value; what follows the snapshot's; deleted


def _overlay(version: StoreVersion) -> dict[bytes, _Change]:
    """What the changelogs above the snapshot change."""
    overlay: dict[bytes, _Change] = {}
    for header in version.plan.headers:
        info = version.files.changelog_info(header.version_id)
        reader = ChangelogReader(io.BytesIO(version.files.storage.read(info.key)), name=info.key)
        if reader.header.id != header.id:
            raise FormatError(f"{info.key} was replaced while it was read", kind=ErrorKind.CHANGELOG_DAMAGED)
        for op, key, value in reader:
            if op is Op.DELETE:
                overlay[key] = None
            elif op is Op.PUT:
                overlay[key] = value
            elif op is Op.MERGE and value is not None:
                overlay[key] = _after(overlay[key], value) if key in overlay else _Appended(value)
            else:
                raise UnsupportedError(f"{info.key}: operation {op.name}, which this version does not read")
    return overlay


def _after(before: _Change, value: bytes) -> _Change:
    if isinstance(before, _Appended):
        return _Appended(before.value + value)
    return (before or b"") + value


def _merged(below: Iterator[Entry], overlay: dict[bytes, _Change]) -> Iterator[Entry]:
    above = iter(sorted(overlay))
    next_key = next(above, None)
    for key, value in below:
        while next_key is not None and next_key < key:
            change = overlay[next_key]
            if change is not None:
                yield next_key, change if isinstance(change, bytes) else change.value
            next_key = next(above, None)
        if next_key != key:
            yield key, value
            continue
        change = overlay[key]
        if change is not None:
            yield key, change if isinstance(change, bytes) else value + change.value
        next_key = next(above, None)
    while next_key is not None:
        change = overlay[next_key]
        if change is not None:
            yield next_key, change if isinstance(change, bytes) else change.value
        next_key = next(above, None)
