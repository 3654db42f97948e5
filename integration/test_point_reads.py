# SPDX-License-Identifier: Apache-2.0
"""Single rows of a state beyond its memory, found without RocksDB in files that are mapped."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from integration.depth import quick_first
from integration.harness import Harness, ProviderError, Row, Schema, Store
from integration.processes import wait_until
from integration.provider import Provider
from integration.store_cases import open_provider

ROWS = 6000
PLAIN = Schema("k string, n bigint", "v string")
CONF = {"millpond.memory.budget": "1m", "millpond.restore.warmUp": False}

State = dict[int, str]


@pytest.fixture(scope="module")
def harness(own_harness: Harness) -> Harness:
    """Return a JVM that has only the files of this module's stores."""
    return own_harness


def mappings(harness: Harness) -> list[list[str]]:
    """Return the fields of the lines about SSTs in the system's list of what the JVM has mapped."""
    lines = Path(f"/proc/{harness.pid}/maps").read_text().splitlines()
    return [line.split(maxsplit=5) for line in lines if ".sst" in line]


def mapped(harness: Harness) -> dict[int, Path]:
    """Return the SSTs that the JVM has mapped: by inode, the name of the time of the mapping."""
    return {int(f[4]): Path(f[5].removesuffix(" (deleted)")) for f in mappings(harness)}


def local(harness: Harness) -> dict[int, Path]:
    """Return the SSTs below the local folders of those that are mapped, by inode."""
    below = {p for name in mapped(harness).values() for p in name.parents if p.name[:1] == "g"}
    found = {}
    for file in (f for folder in below for f in folder.rglob("*.sst")):
        with suppress(FileNotFoundError):  # a compaction goes on
            found[file.stat().st_ino] = file
    return found


def replaced(harness: Harness) -> dict[int, int]:
    """Return the bytes of mapped SSTs that have no name, in whole pages, by inode."""
    named = local(harness)
    pages = {int(f[4]): [int(n, 16) for n in f[0].split("-")] for f in mappings(harness)}
    return {inode: end - start for inode, (start, end) in pages.items() if inode not in named}


def are_mapped(harness: Harness) -> Callable[[], bool]:
    """Return whether reads go to mapped files."""
    return lambda: bool(mapped(harness))


def key(i: int) -> Row:
    """Return key number `i`."""
    return ["k", i]


def read(store: Store, state: State, keys: list[int]) -> None:
    """Compare what the store has of some keys."""
    for i in keys:
        found = store.get(key(i))
        assert (found[0] if found else None) == state.get(i), i


def batch(provider: Provider, version: int, state: State, chosen: random.Random) -> None:
    """Change some rows, remove some, and commit."""
    store = provider.store(version)
    rows = chosen.sample(range(ROWS), 1500 if version else ROWS)
    changed = {i: f"{version} " + "x" * chosen.randrange(150) for i in rows}
    store.put_many([(key(i), [v]) for i, v in changed.items()])
    state.update(changed)
    for i in chosen.sample(sorted(state), 100):
        store.remove(key(i))
        del state[i]
    store.commit()


def batch_and_reads(provider: Provider, version: int, state: State, chosen: random.Random) -> int:
    """Do a batch, a flush, and some reads. Return the next version."""
    batch(provider, version, state, chosen)
    provider.snapshot()
    store = provider.store(version + 1)
    read(store, state, chosen.sample(range(ROWS), 50))
    store.abort()
    return version + 1


@pytest.mark.parametrize("compression", quick_first(["lz4", "zstd", "none"]))
def test_rows_are_found_while_files_come_and_go(
    harness: Harness, tmp_path: Path, compression: str
) -> None:
    chosen = random.Random(compression)
    conf = CONF | {"millpond.snapshot.compression": compression}
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=conf)
    state: State = {}
    for version in range(24):
        batch(provider, version, state, chosen)
        provider.snapshot()
        store = provider.store(version + 1)
        read(store, state, chosen.sample(range(ROWS + 500), 300))
        if version == 2:
            wait_until(are_mapped(harness), seconds=60, what="files that are mapped")
        store.abort()
    store = provider.store(24)
    read(store, state, list(range(ROWS + 500)))
    assert {k[1]: v[0] for k, v in store.scan()} == state
    store.abort()
    provider.close()
    assert not mapped(harness)


def test_a_lookup_that_failed_is_made_after_the_next_flush(tmp_path: Path) -> None:
    """The log tells of it once."""
    chosen = random.Random(3)
    harness = Harness(tmp_path, conf={"spark.millpond.harness.log": "WARN"})
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=CONF)
    state: State = {}
    version = 0

    def is_mapped() -> bool:
        nonlocal version
        version = batch_and_reads(provider, version, state, chosen)
        return are_mapped(harness)()

    def has_failed_thrice() -> bool:
        is_mapped()
        return harness.passes() > 2

    harness.arm("lookup.step", kind="STORAGE_UNAVAILABLE", first=1, last=1000)
    wait_until(has_failed_thrice, seconds=60, what="lookups that fail")
    harness.disarm()
    wait_until(is_mapped, seconds=60, what="files that are mapped")
    told = [
        line
        for line in harness.log_path.read_text().splitlines()
        if "a fault of the test at lookup" in line
    ]
    assert len(told) == 1, told
    provider.close()
    harness.stop()


def test_a_store_that_only_scans_maps_its_files(harness: Harness, tmp_path: Path) -> None:
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=CONF)
    state: State = {}
    batch(provider, 0, state, random.Random(0))
    provider.snapshot()
    provider.close()
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=CONF)

    def is_mapped() -> bool:
        store = provider.store(1)
        assert {k[1]: v[0] for k, v in store.scan()} == state
        store.abort()
        return are_mapped(harness)()

    wait_until(is_mapped, seconds=60, what="files that are mapped")
    assert is_mapped()
    provider.close()


def test_maintenance_gives_back_the_files_that_a_compaction_replaced(
    harness: Harness, tmp_path: Path
) -> None:
    chosen = random.Random(0)
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=CONF)
    state: State = {}

    version = 0

    def disk_bytes() -> int:
        """End a batch without a change. Return the metric."""
        nonlocal version
        store = provider.store(version)
        store.commit()
        version += 1
        return int(store.metrics()["custom"]["millpondDiskBytes"])

    def all_is_counted() -> bool:
        told, held = disk_bytes(), replaced(harness)
        named = sum(file.stat().st_size for file in local(harness).values())
        return 0 <= named + sum(held.values()) - told <= len(held) * mmap.PAGESIZE

    assert disk_bytes() == 0
    is_seen = False
    while not is_seen:
        assert version < 100, "the metric never counted a mapped file that a compaction replaced"
        version = batch_and_reads(provider, version, state, chosen)
        if replaced(harness):
            wait_until(all_is_counted, seconds=60, what="the metric to count all files")
            # the lookup that these reads began may have given the files back before
            is_seen = bool(replaced(harness))

    def is_given_back() -> bool:
        provider.cleanup()
        return bool(mapped(harness)) and not replaced(harness)

    wait_until(is_given_back, seconds=60, what="maintenance to give files back")
    wait_until(all_is_counted, seconds=60, what="the metric to count what is left")
    store = provider.store(version)
    read(store, state, list(range(ROWS)))
    store.abort()
    provider.close()


@pytest.mark.deep
def test_on_yarn_no_file_is_mapped(tmp_path: Path) -> None:
    """YARN kills by resident memory. RocksDB reads rows, and the filter of keys denies others."""
    chosen = random.Random(2)
    harness = Harness(tmp_path, conf={"spark.millpond.harness.master": "yarn"})
    checkpoint = tmp_path / "query"
    provider = open_provider(harness, checkpoint, schema=PLAIN, operator="dedupe", conf=CONF)
    state: State = {}
    version, disk_reads = 0, 0

    def commit_reads(keys: list[int]) -> int:
        """Read in a batch. Return how many reads went to the disk tier."""
        nonlocal version
        store = provider.store(version)
        read(store, state, keys)
        store.commit()
        version += 1
        assert not mapped(harness)
        return int(store.metrics()["custom"]["millpondDiskReads"])

    def absent_keys_need_no_disk() -> bool:
        return commit_reads(list(range(ROWS, ROWS + 100))) < 20

    for _ in range(3):
        batch(provider, version, state, chosen)
        version += 1
        provider.snapshot()
        disk_reads += commit_reads(chosen.sample(range(ROWS), 300))
    wait_until(absent_keys_need_no_disk, seconds=60, what="what helps reads")
    disk_reads += commit_reads(list(range(ROWS)))
    assert disk_reads > ROWS // 4
    store = provider.store(version)
    assert {k[1]: v[0] for k, v in store.scan()} == state
    store.abort()
    provider.close()
    harness.stop()


def test_a_mapped_file_that_is_cut_is_damage_and_the_state_comes_back(
    harness: Harness, tmp_path: Path
) -> None:
    chosen = random.Random(1)
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=CONF)
    state: State = {}
    batch(provider, 0, state, chosen)
    provider.snapshot()
    batch(provider, 1, state, chosen)
    provider.snapshot()

    def is_read_from_mapped_files() -> bool:
        store = provider.store(2)
        read(store, state, chosen.sample(range(ROWS), 50))
        store.abort()
        return bool(mapped(harness))

    wait_until(is_read_from_mapped_files, seconds=60, what="files that are mapped")
    files = local(harness)
    for inode in mapped(harness):
        for uploaded in tmp_path.rglob("*.sst"):
            if uploaded.stat().st_ino == inode:
                content = uploaded.read_bytes()
                uploaded.unlink()
                uploaded.write_bytes(content)
        os.truncate(files[inode], files[inode].stat().st_size // 2)
    store = provider.store(2)
    with pytest.raises(ProviderError, match="SST_DAMAGED"):
        read(store, state, list(range(ROWS)))
    store.abort()
    store = provider.store(2)
    read(store, state, list(range(ROWS)))
    store.abort()
    provider.close()
