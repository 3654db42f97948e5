"""Carries out an erasure: writes changelogs anew, and deletes what they replace.

Each step can be repeated, and the steps may end anywhere: of other keys, a file that is written
anew holds what the files that it replaces held.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from millpond.format.changelog import ChangelogHeader, ChangelogWriter, Record, has_repeats
from millpond.format.manifest import Manifest
from millpond.local.scratch import scratch_directory
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily
from millpond.model.key_groups import KeyGroups
from millpond.operations.erase.matching import Matcher
from millpond.operations.erase.plan import Rewrite, counted, header_of
from millpond.operations.erase.scan import Families, changelog_blocks, mask_of
from millpond.storage import Storage
from millpond.storage.local import translate_restored
from millpond.store.entries import Entry, StoreVersion, entry_chunks
from millpond.store.files import StoreFiles
from millpond.store.restore.plan import RestorePlan, checked_header, plan_restore

_HEAD_BYTES = 16
Planned = Sequence[tuple[Rewrite, RestorePlan]]


def count(
    storage: Storage, files: StoreFiles, planned: Planned, matcher: Matcher
) -> tuple[list[Rewrite], int]:
    """Return the rewrites of a store with the live keys that are left after each version, and how
    many live keys go from the newest one.

    Reads the rows of each version that is written whole, and the other changelogs.
    """
    result: list[Rewrite] = []
    live: dict[bytes, int] = {}  # rows of the key that count -> their key group
    for rewrite, plan in planned:
        described = plan.newest
        assert described is not None
        families = {f.id: f for f in described.column_families}
        info = described.key_groups
        groups = KeyGroups(info.max_parallelism, info.base)

        if rewrite.whole:
            live = {}
            with entry_chunks(StoreVersion(files, plan)) as chunks:
                for chunk in chunks:
                    keys = [key for key, _ in chunk]
                    mask = mask_of(matcher, files.store.name, families, keys)
                    for n in np.flatnonzero(mask).tolist():
                        family = families[keys[n][2] << 8 | keys[n][3]]
                        if not family.internal:
                            live[keys[n]] = groups.group(family.slot_of(keys[n]))
        else:
            key = files.changelog_info(rewrite.version).key
            for record in records_of_key(storage, files, key, matcher):
                family = families[record.key[2] << 8 | record.key[3]]
                if record.value is None:
                    live.pop(record.key, None)
                elif not family.internal:
                    live[record.key] = groups.group(family.slot_of(record.key))
        result.append(counted(rewrite, described, Counter(live.values())))
    return result, len(live)


def records_of_key(
    storage: Storage, files: StoreFiles, key: str, matcher: Matcher
) -> Iterator[Record]:
    """Yield the entries of the key in a changelog."""
    for families, _, records in changelog_blocks(storage, key):
        mask = mask_of(matcher, files.store.name, families, [record.key for record in records])
        for n in np.flatnonzero(mask).tolist():
            yield records[n]


def rewrite_all(
    storage: Storage,
    spark_format: int,
    rewrites: Sequence[Rewrite],
    matcher: Matcher,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the changelogs. The newest versions come first: a version that a rescale made is
    written before the changelogs of other partitions that it was put together from.
    """
    files: dict[StoreId, StoreFiles] = {}
    for done, rewrite in enumerate(
        sorted(rewrites, key=lambda one: (-one.version.version, one.store)), 1
    ):
        if rewrite.store not in files:
            files[rewrite.store] = StoreFiles(storage, rewrite.store, spark_format)
            files[rewrite.store].refresh()
        _rewrite(storage, files[rewrite.store], rewrite, matcher)
        if progress is not None:
            progress(done, len(rewrites))


def _rewrite(storage: Storage, files: StoreFiles, rewrite: Rewrite, matcher: Matcher) -> None:
    key = rewrite.key(files.spark_format)
    with scratch_directory("erase") as directory:
        path = os.path.join(directory, "changelog")
        try:
            with open(path, "xb") as file:
                if rewrite.whole:
                    plan = _plan(files, rewrite)
                    assert plan.newest is not None
                    writer = ChangelogWriter(file, header_of(rewrite, plan.newest))
                    _write_rows(writer, files, plan, plan.newest, matcher)
                else:
                    head = storage.read_range(key, 0, _HEAD_BYTES)
                    described = checked_header(files, rewrite.version)
                    writer = ChangelogWriter(
                        file, header_of(rewrite, described), repeats=has_repeats(head)
                    )
                    _write_changes(writer, storage, files, key, matcher)
                writer.finish()
        except OSError as e:
            raise translate_restored(e, f"writing {path}") from e
        storage.put_file(key, path)


def _plan(files: StoreFiles, rewrite: Rewrite) -> RestorePlan:
    """Return how to read a version of which all rows are written anew.

    If an erasure that did not end has written them, nothing else is read: it may have replaced the
    changelogs of other partitions that the version was put together from.
    """
    version = rewrite.version
    if files.has_changelog(version):
        header = checked_header(files, version)
        if header.empty_base:
            base = VersionId(version.version - 1)
            return RestorePlan(target=version, base=base, manifest=None, headers=(header,))
    return plan_restore(files, version if files.exact_ids else VersionId(version.version))


def _write_rows(
    writer: ChangelogWriter,
    files: StoreFiles,
    plan: RestorePlan,
    described: ChangelogHeader | Manifest,
    matcher: Matcher,
) -> None:
    kept: Families = {f.id: f for f in described.column_families if not f.removed}
    with entry_chunks(StoreVersion(files, plan)) as chunks:
        for chunk in chunks:
            rows = [entry for entry in chunk if entry[0][2] << 8 | entry[0][3] in kept]
            writer.put_all(without_key(rows, kept, files.store.name, matcher))


def without_key(
    rows: list[Entry], families: Mapping[int, ColumnFamily], store: str, matcher: Matcher
) -> list[Entry]:
    """Return the rows that are not of the key."""
    if not rows:
        return rows
    mask = mask_of(matcher, store, families, [key for key, _ in rows])
    if not mask.any():
        return rows
    return [row for row, goes in zip(rows, mask.tolist(), strict=True) if not goes]


def _write_changes(
    writer: ChangelogWriter, storage: Storage, files: StoreFiles, key: str, matcher: Matcher
) -> None:
    for families, _, records in changelog_blocks(storage, key):
        mask = mask_of(matcher, files.store.name, families, [record.key for record in records])
        for record, goes in zip(records, mask.tolist(), strict=True):
            if not goes:
                writer.append(record)
