"""The cache of SSTs. It is bounded, checked and shared. It is never in the way."""

from __future__ import annotations

import os
import shutil
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.service import AgentService
from millpond.format.manifest import SstRef
from millpond.storage import MemoryStorage
from millpond.store.sst_cache import SstCache, cache_directory
from millpond.testing.faults import FaultyStorage
from tests.agent_driver import Provider


def sst(data: bytes) -> SstRef:
    return SstRef(
        key=f"sst/{uuid.uuid4().hex}.sst",
        local_name="000001.sst",
        size_bytes=len(data),
        crc32=zlib.crc32(data),
        smallest_hex="",
        largest_hex="",
        entries=1,
        deletions=0,
        level=6,
    )


def add(cache: SstCache, path: Path, data: bytes) -> SstRef:
    path.write_bytes(data)
    ref = sst(data)
    cache.add(ref, str(path))
    return ref


def test_what_was_added_is_found(tmp_path: Path) -> None:
    cache = SstCache(str(tmp_path / "c"), 100)
    ref = add(cache, tmp_path / "a", b"data")
    assert not cache.take(sst(b"data"), str(tmp_path / "b")), (
        "another SST with the same bytes is not found"
    )
    modified_ns = (tmp_path / "a").stat().st_mtime_ns
    assert SstCache(str(tmp_path / "c"), 100).take(ref, str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"data" and os.path.samefile(
        tmp_path / "a", tmp_path / "b"
    )
    assert (tmp_path / "b").stat().st_mtime_ns == modified_ns, (
        "the cache recognises the file by its time"
    )
    cache.add(ref, str(tmp_path / "a"))


def test_the_longest_unused_goes(tmp_path: Path) -> None:
    cache = SstCache(str(tmp_path / "c"), 100)
    refs = [add(cache, tmp_path / str(i), bytes([i]) * 40) for i in range(2)]
    for i, ref in enumerate(refs):
        os.utime(cache._entry(ref), ns=(i, 5))
    assert cache.take(refs[0], str(tmp_path / "x"))
    newer = add(cache, tmp_path / "2", b"z" * 40)
    assert [cache.take(ref, str(tmp_path / f"y{i}")) for i, ref in enumerate([*refs, newer])] == [
        True,
        False,
        True,
    ]
    assert not (tmp_path / "y1").exists()
    add(cache, tmp_path / "3", b"z" * 101)
    assert len(list((tmp_path / "c").iterdir())) == 2, (
        "the cache does not keep a file that is larger than it"
    )


@pytest.mark.parametrize("damage", [b"datA", b"dat", b""])
def test_damage_is_seen(tmp_path: Path, damage: bytes) -> None:
    cache = SstCache(str(tmp_path / "c"), 100)
    ref = add(cache, tmp_path / "a", b"data")
    Path(cache._entry(ref)).unlink()
    Path(cache._entry(ref)).write_bytes(damage)
    assert not cache.take(ref, str(tmp_path / "b"))
    assert not (tmp_path / "b").exists() and not Path(cache._entry(ref)).exists()


def test_a_directory_of_others_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("open", "link", "file", "no/such"):
        cache = SstCache(str(tmp_path / name), 100)
        ref = add(cache, tmp_path / "a", b"data")
        assert not cache.take(ref, str(tmp_path / "b"))
    assert list((tmp_path / "open").iterdir()) == []
    assert not SstCache(str(tmp_path / "none"), 0).take(ref, str(tmp_path / "b"))
    assert not (tmp_path / "none").exists()


def test_executors_of_a_host_share_it(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage(), lambda _: None)

    def executor(name: str, size: str = "1m") -> Provider:
        local = tmp_path / "local" / name
        local.mkdir(parents=True)
        service = AgentService(opener=lambda uri, settings: storage, local_root=str(local))
        options = {"storage.cache.size": size}
        return Provider(
            service,
            tmp_path / "ckpt",
            local / "store",
            storage=storage,
            spark_format=2,
            options=options,
        )

    def fetched(provider: Provider) -> list[str]:
        got: list[str] = []
        storage._chooser = lambda op: got.append(op.key) if op.name == "get_to_file" else None
        assert provider.open(writer.version, writer.id) == writer.state
        return [key for key in got if key.endswith(".sst")]

    writer = executor("writer")
    writer.open(0)
    for _ in range(2):
        writer.commit()
        writer.snapshot()
    writer.commit()
    directory = Path(cache_directory(str(tmp_path / "local")))
    assert len(list(directory.iterdir())) == 2, "the cache keeps what was uploaded"
    assert fetched(executor("second")) == []
    (entry, _) = sorted(directory.iterdir())
    entry.unlink()
    assert len(fetched(executor("third"))) == 1
    assert fetched(executor("fourth")) == [], "the cache keeps what was fetched"
    assert len(fetched(executor("fifth", size="0"))) == 2


def test_the_cache_looks_at_its_files_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at all of them for each that came. Stores with little state have small files, so an
    agent had no time left for commits after a day.
    """
    directory, scandir = tmp_path / "c", os.scandir
    looks: list[str] = []

    def counted(path: str) -> Any:
        looks.append(path)
        return scandir(path)

    cache = SstCache(str(directory), 1 << 20)
    monkeypatch.setattr(os, "scandir", counted)
    for i in range(1000):
        add(cache, tmp_path / str(i), i.to_bytes(4, "big") * 1000)
    assert len(looks) < 60
    monkeypatch.undo()
    kept = sum(path.stat().st_size for path in directory.iterdir())
    assert kept + 4000 >= 7 << 17 and kept <= 1 << 20


def test_the_cache_makes_its_directory_again(tmp_path: Path) -> None:
    cache = SstCache(str(tmp_path / "c"), 100)
    add(cache, tmp_path / "a", b"a")
    shutil.rmtree(tmp_path / "c")
    add(cache, tmp_path / "b", b"b")
    ref = add(cache, tmp_path / "d", b"d")
    assert cache.take(ref, str(tmp_path / "e"))


def test_the_stores_of_an_agent_share_one(tmp_path: Path) -> None:
    """Else each looks at all files, and none knows what the others have added."""
    local = tmp_path / "local" / "executor"
    local.mkdir(parents=True)
    memory = MemoryStorage()
    service = AgentService(opener=lambda uri, settings: memory, local_root=str(local))
    for partition in range(3):
        Provider(
            service,
            tmp_path / "ckpt",
            local / f"store-{partition}",
            partition=partition,
            storage=memory,
        ).open(0)
    caches = [context.sst_cache for context in service._contexts._stores.values()]
    assert len(caches) == 3 and len(set(map(id, caches))) == 1
