# SPDX-License-Identifier: Apache-2.0
"""A store with state beyond memory that no batch needs for a while, and what it holds."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from integration.depth import quick_first
from integration.harness import Harness, ProviderError
from integration.processes import wait_until
from integration.provider import Provider
from integration.store_cases import open_provider
from integration.test_point_reads import CONF, PLAIN, ROWS, State, are_mapped, batch, read


@pytest.fixture(scope="module")
def harness(own_harness: Harness) -> Harness:
    """Return a JVM that has only the files of this module's stores."""
    return own_harness


def opened(harness: Harness, below: Path = Path("/")) -> list[Path]:
    """Return the files below a folder that the JVM has open, mapped ones aside."""
    found = []
    for entry in Path(f"/proc/{harness.pid}/fd").iterdir():
        try:
            found.append(Path(os.readlink(entry)))
        except FileNotFoundError:
            continue  # closed meanwhile
    return [name for name in found if name.is_relative_to(below)]


def open_rocks(harness: Harness) -> set[Path]:
    """Return the folders of the RocksDBs that are open.

    A sorted file may be open without: where a mapping is slow, as on a busy machine, single reads
    go to the file, until a pass of maintenance finds that they have ended.
    """
    return {name.parent for name in opened(harness) if name.name.startswith("MANIFEST-")}


def tier_of(harness: Harness) -> Path:
    """Return the folder of the one RocksDB that is open."""
    (folder,) = open_rocks(harness)
    return folder


def advance(
    harness: Harness, provider: Provider, version: int, state: State, chosen: random.Random
) -> None:
    """Make the next version, put it on disk, and wait until single reads go to mapped files."""
    batch(provider, version, state, chosen)

    def is_mapped() -> bool:
        store = provider.store(version + 1)
        read(store, state, chosen.sample(range(ROWS), 50))
        store.abort()
        return are_mapped(harness)()

    wait_until(is_mapped, seconds=60, what="files that are mapped")
    provider.snapshot()


def restored(harness: Harness, checkpoint: Path, state: State) -> Provider:
    """Return a provider at version 1, none of whose rows was read yet."""
    conf = {"millpond.restore.warmUp": False}
    provider = open_provider(harness, checkpoint, schema=PLAIN, operator="dedupe", conf=conf)
    batch(provider, 0, state, random.Random(1))
    provider.store(1).abort()
    provider.snapshot()
    provider.close()
    provider = open_provider(harness, checkpoint, schema=PLAIN, operator="dedupe", conf=conf)
    provider.store(1).abort()
    return provider


def rest(harness: Harness, provider: Provider) -> Path:
    """Let maintenance close what nobody uses. Return the folder of the disk tier."""
    folder = tier_of(harness)
    provider.cleanup()
    assert open_rocks(harness), "a store that was used before this pass is closed"

    def is_closed() -> bool:
        provider.cleanup()
        return not opened(harness, folder)

    # RocksDB first compacts what the batches left
    wait_until(is_closed, seconds=60, what="maintenance to close an idle store")
    return folder


@pytest.mark.parametrize("versions", quick_first([2, 6]))
def test_an_idle_store_has_no_open_files_and_all_its_rows(
    harness: Harness, tmp_path: Path, versions: int
) -> None:
    chosen = random.Random(2)
    state: State = {}
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=CONF)
    for version in range(1, versions + 1):
        advance(harness, provider, version - 1, state, chosen)
        rest(harness, provider)
        store = provider.store(version)
        read(store, state, list(range(ROWS + 500)))
        keys = store.keys()
        store.abort()
        assert keys == len(state)
        assert not open_rocks(harness), f"single reads open version {version}"
        provider.cleanup()
        assert not open_rocks(harness), "maintenance opens the store"
        store = provider.store(version)
        assert {k[1]: v[0] for k, v in store.scan()} == state
        store.abort()
    provider.close()
    other = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=CONF)
    store = other.store(versions)
    assert {k[1]: v[0] for k, v in store.scan()} == state
    store.abort()
    other.close()


def test_a_scan_keeps_the_store_open(harness: Harness, tmp_path: Path) -> None:
    state: State = {}
    provider = restored(harness, tmp_path, state)
    folder = tier_of(harness)
    store = provider.store(1)
    rows = store.iterate()
    for _ in range(3):
        provider.cleanup()
        assert open_rocks(harness) == {folder}
    assert {k[1]: v[0] for k, v in rows.next(-1)} == state
    store.abort()
    provider.close()


def test_the_folder_of_an_idle_store_is_emptied(harness: Harness, tmp_path: Path) -> None:
    state: State = {}
    provider = restored(harness, tmp_path, state)
    shutil.rmtree(rest(harness, provider))
    store = provider.store(1)
    with pytest.raises(ProviderError, match="LOCAL_FILES_LOST"):
        store.scan()
    store.abort()
    store = provider.store(1)
    assert {k[1]: v[0] for k, v in store.scan()} == state
    store.abort()
    provider.close()
