"""Full and read-only disks: the right error, and nothing durable is lost."""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration import growing
from integration.damage_scene import Scene
from integration.harness import (
    Harness,
    Numbered,
    Provider,
    ProviderError,
    millponds_own,
    module_harness,
)
from integration.store_cases import open_small
from integration.store_model import canon
from tests.s3_server import s3_server

pytestmark = millponds_own

harness = module_harness


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a small tmpfs. Skip the test if that is not allowed."""
    done: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk-{len(done)}"
        path.mkdir()
        got = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if got.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {got.stderr.strip()}")
        done.append(path)
        return path

    yield mount
    for path in done:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _fill(provider: Provider, scene: Scene, rows: int = 200) -> None:
    version = max(scene.states)
    store, state, rng = (
        provider.store(version, scene.ids[version]),
        dict(scene.states[version]),
        random.Random(version),
    )
    for i in range(rows):
        key, value = ["k", i], [rng.randbytes(2000).hex(), version]
        store.put(key, value)
        state[canon(key)] = (key, value)
    scene.note(store.commit(), state)


def test_no_space_for_the_checkpoint(
    harness: Harness, tmp_path: Path, mounted: Callable[[str], Path]
) -> None:
    """A commit without room fails with the reason. Committed versions stay readable.

    With more room the query goes on.
    """
    disk = mounted("size=2m")
    scene = Scene(harness, disk / "checkpoint")
    provider = scene.open()
    with pytest.raises(ProviderError) as caught:
        for _ in range(20):
            _fill(provider, scene)
    assert "[MILLPOND_STORAGE_FULL]" in caught.value.text, caught.value.text
    last = max(scene.states)
    assert last >= 1
    provider.close()
    assert scene.read(last) == scene.states[last]
    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
    provider = scene.open()
    _fill(provider, scene)
    provider.close()
    assert scene.read(last + 1) == scene.states[last + 1]


@pytest.mark.deep
def test_no_space_on_the_local_disk(
    harness: Harness, tmp_path: Path, mounted: Callable[[str], Path]
) -> None:
    """A restore without room for RocksDB fails with the reason. The files on storage are whole."""
    writer = Harness(tmp_path)
    scene = Scene(writer, tmp_path / "checkpoint")
    try:
        provider = scene.open()
        for _ in range(4):
            _fill(provider, scene)
        provider.snapshot()
        _fill(provider, scene)
        provider.close()
    finally:
        writer.stop()
    disk = mounted("size=256k")
    small = Harness(tmp_path)
    try:
        scene.harness = small
        scene.refuses(5, "LOCAL_DISK_FULL", localDir=str(disk))
    finally:
        small.stop()
    scene.harness = harness  # which has seen nothing of it
    assert scene.read(5) == scene.states[5]


@pytest.mark.deep
def test_no_space_on_the_local_disk_for_a_changelog(
    tmp_path: Path, mounted: Callable[[str], Path]
) -> None:
    """It is written there first where storage is remote. The error told of a full storage."""
    disk, harness = mounted("size=32m"), Harness(tmp_path)
    with s3_server() as server:
        try:
            scene = growing.Scene(server, harness, tmp_path / "checkpoint", disk)
            store = scene.provider.store(1, scene.first.id)
            store.put_numbered(Numbered(2000, "more", 400))
            with pytest.raises(OSError, match="No space"), (disk / "filler").open("wb") as filler:
                while True:
                    filler.write(bytes(1 << 12))
                    filler.flush()
            with pytest.raises(ProviderError) as caught:
                store.commit()
            assert "[MILLPOND_LOCAL_DISK_FULL]" in caught.value.text, caught.value.text
            (disk / "filler").unlink()
            assert store.commit().version == 2
            scene.provider.close()
        finally:
            harness.stop()


def test_read_only_checkpoint(
    harness: Harness, tmp_path: Path, mounted: Callable[[str], Path]
) -> None:
    """The commit fails with the reason. The version before stays readable."""
    disk = mounted("size=20m")
    scene = Scene(harness, disk / "checkpoint")
    provider = scene.open()
    scene.write(provider, 2)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(ProviderError) as caught:
        scene.write(provider, 1)
    assert "[MILLPOND_STORAGE_DENIED]" in caught.value.text, caught.value.text
    provider.close()
    assert scene.read(2) == scene.states[2]


def test_checkpoint_below_a_regular_file(harness: Harness, tmp_path: Path) -> None:
    """The store cannot make its directory. It raises an error of storage, and is not empty."""
    (tmp_path / "file").write_text("not a directory")
    scene = Scene.__new__(Scene)
    scene.__dict__.update(
        harness=harness,
        checkpoint=tmp_path / "file" / "checkpoint",
        checkpoint_format=1,
        partitions=1,
        options={},
        states={0: {}},
        ids={0: None},
    )
    scene.refuses(
        0, "STORAGE_UNAVAILABLE", "STORAGE_DENIED", "OBJECT_NOT_FOUND", "NOT_A_CHECKPOINT"
    )


def test_too_many_open_files(harness: Harness, tmp_path: Path) -> None:
    """Java tells of a file that is not there, and RocksDB of an error like any other. So a
    changelog seemed to be missing, or Millpond to have a bug.
    """
    provider = open_small(harness, tmp_path / "checkpoint", "256k")
    layers = [Numbered(20_000, "one", 40), Numbered(20_000, "two", 40)]
    store = provider.store(0)
    store.put_numbered(layers[0])
    store.commit()
    with pytest.raises(ProviderError):
        provider.store(9)  # the harness loads what it needs to tell of an error
    store = provider.store(1)
    most = resource.prlimit(harness.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(harness.pid, resource.RLIMIT_NOFILE, (32, most[1]))
    try:
        with pytest.raises(ProviderError) as caught:
            store.put_numbered(layers[1])
    finally:
        resource.prlimit(harness.pid, resource.RLIMIT_NOFILE, most)
    assert "[MILLPOND_STORAGE_UNAVAILABLE]" in caught.value.text, caught.value.text
    assert "ulimit -n" in caught.value.text
    store.abort()
    store = provider.store(1)
    store.put_numbered(layers[1])
    store.commit()
    assert provider.read_store(2).check_numbered(layers) == 20_000
    provider.close()
