"""Memory or disk runs out in a running batch.

The task fails with the reason. The last version stays. The next attempt goes on.
"""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness import (
    Harness,
    Provider,
    ProviderError,
    Row,
    millponds_own,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.store_cases import STRINGS, commit_strings, strings_of
from integration.store_model import write_spark_metadata

pytestmark = [pytest.mark.spark, millponds_own]

MIB = 1 << 20


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """Start a JVM for one test, because the test may harm it."""
    started = Harness(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 MiB. Skip the test if that is not allowed."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def _provider(harness: Harness, checkpoint: Path, **options: object) -> Provider:
    if not checkpoint.exists():
        write_spark_metadata(
            checkpoint, operator_name="dedupe", partitions=1, provider_class=MILLPOND
        )
    conf = short_conf(
        {f"millpond.{name.replace('_', '.')}": value for name, value in options.items()}
    )
    conf |= {"spark.sql.shuffle.partitions": "1"}
    return harness.open(checkpoint / "state", provider_class=MILLPOND, schema=STRINGS, conf=conf)


def leave_free(disk: Path, free_bytes: int) -> Path:
    """Fill the disk except for `free_bytes`. Return the file that does it."""
    ballast = disk / "ballast"
    usage = subprocess.run(
        ["df", "--output=avail", "-B1", str(disk)], capture_output=True, text=True, check=True
    )
    with ballast.open("wb") as file:
        file.write(bytes(int(usage.stdout.split()[-1]) - free_bytes))
    return ballast


def test_the_local_disk_is_full_while_a_batch_spills(
    harness: Harness, tmp_path: Path, small_disk: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    provider = _provider(harness, checkpoint, memory_budget="256k", localDir=str(small_disk))
    first = {i: f"first {i}" for i in range(100)}
    commit_strings(provider, 0, first)
    ballast = leave_free(small_disk, 512 * 1024)
    rng = random.Random(1)
    large = {i: rng.randbytes(500).hex() for i in range(50, 4000)}
    store = provider.store(1)
    pairs: list[tuple[Row, Row]] = [([k], [v]) for k, v in large.items()]
    with pytest.raises(ProviderError) as error:
        store.put_many(pairs)
    assert "[MILLPOND_LOCAL_DISK_FULL]" in error.value.text, error.value.text
    store.abort()
    # The disk is as full as before. The store still serves the last version.
    read = provider.read_store(1)
    assert strings_of(read) == first
    read.release()
    ballast.unlink()
    store = provider.store(1)
    store.put_many(pairs)
    assert int(store.metrics()["custom"]["millpondSpills"]) >= 1
    assert store.commit().version == 2
    provider.close()
    provider = _provider(harness, checkpoint)
    assert strings_of(provider.read_store(2)) == {**first, **large}
    provider.close()


@pytest.mark.deep
def test_the_system_refuses_native_memory(harness: Harness, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    provider = _provider(harness, checkpoint, memory_budget="4g")
    first = {i: f"first {i}" for i in range(100)}
    commit_strings(provider, 0, first)
    (size,) = [
        int(line.split()[1]) * 1024
        for line in Path(f"/proc/{harness.pid}/status").read_text().splitlines()
        if line.startswith("VmSize:")
    ]
    limits = resource.prlimit(harness.pid, resource.RLIMIT_AS)
    store = provider.store(1)
    store.put([1], ["second"])
    large = {i: str(i % 10) * (12 * MIB) for i in range(2, 12)}
    # The limit has room for the JVM's own needs, and not for all rows.
    resource.prlimit(harness.pid, resource.RLIMIT_AS, (size + 48 * MIB, limits[1]))
    try:
        with pytest.raises(ProviderError) as error:
            for k, v in large.items():
                store.put([k], [v])
        assert "[MILLPOND_MEMORY_EXHAUSTED]" in error.value.text, error.value.text[:2000]
        store.abort()
        read = provider.read_store(1)
        assert strings_of(read) == first
        read.release()
    finally:
        resource.prlimit(harness.pid, resource.RLIMIT_AS, limits)
    store = provider.store(1)
    for k, v in large.items():
        store.put([k], [v])
    assert store.commit().version == 2
    store = provider.read_store(2)
    found = strings_of(store)
    assert all(found[k] == v for k, v in large.items())
    store.release()
    provider.close()
