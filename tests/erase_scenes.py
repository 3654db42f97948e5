"""Queries for tests of erasures, and erasures that are killed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rocksdict

import millpond
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader, Op, Record
from millpond.model.ids import StoreId, VersionId
from millpond.storage import LocalStorage
from millpond.store.files import StoreFiles
from tests.checkpoints import CheckpointBuilder, tree, version_id
from tests.examples import changelog_bytes
from tests.failing_storage import Killed
from tests.row_checkpoints import HashedBuilder


def unheld(built: CheckpointBuilder) -> dict[str, bytes]:
    """Return all files but the heartbeats of commands."""
    prefix = layout.RUNNING_COMMANDS_PREFIX
    return {k: v for k, v in tree(built.root).items() if not k.startswith(prefix)}


class Deleting(HashedBuilder):
    """Version 5 of each store also deletes the key of version 1."""

    def keys(self, version: int) -> int:
        return super().keys(version) - (version >= 5)

    def changelogs(self, store: StoreId, versions: int) -> None:
        super().changelogs(store, versions)
        records = [
            Record(Op.PUT, self.key(store, 5), self.value(store, 5)),
            Record(Op.DELETE, self.key(store, 1), None),
        ]
        key = layout.changelog_key(store, VersionId(5, version_id(store, 5)), self.spark_format)
        self.storage.put_bytes(key, changelog_bytes(self.header(store, 5), records))


def keys_of(built: CheckpointBuilder, batch: int | None = None) -> list[int]:
    rows = millpond.read_state(built.root, batch=batch).to_pylist()
    return sorted(row["key"]["k"] for row in rows)


def erase_killed(monkeypatch: pytest.MonkeyPatch, root: Path, key: int, files: int) -> None:
    """Erase a key, and be killed when so many files are written anew."""
    put_file, left = LocalStorage.put_file, [files]

    def some(self: LocalStorage, *arguments: Any, **more: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        put_file(self, *arguments, **more)

    monkeypatch.setattr(LocalStorage, "put_file", some)
    with pytest.raises(Killed):
        millpond.erase([root], key={"k": key})
    monkeypatch.undo()


def check_counts(built: CheckpointBuilder, batches: Iterable[int]) -> None:
    """No version says a wrong number of live keys."""
    for batch in batches:
        rows = millpond.read_state(built.root, batch=batch).to_pylist()
        for store in built.stores():
            files = StoreFiles(built.storage, store, built.spark_format)
            files.refresh()
            header = files.header(VersionId(batch + 1, version_id(store, batch + 1)))
            assert header.keys in (-1, sum(row["partition"] == store.partition for row in rows))


class Lineage(HashedBuilder):
    """Each changelog names all versions below it."""

    def header(self, store: StoreId, version: int) -> ChangelogHeader:
        ids = tuple(version_id(store, below) for below in range(version))
        return replace(super().header(store, version), lineage_base=0, lineage=ids)


def uncompressed(raw_mode: bool, options: Any = rocksdict.Options) -> Any:
    made = options(raw_mode=raw_mode)
    made.set_compression_type(rocksdict.DBCompressionType.none())
    return made
