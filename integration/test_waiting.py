"""No thread waits while another writes to storage or reads from it.

A load that meets a replaced changelog plans again. It passes over a snapshot only if that is
damaged.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from integration.harness import (
    Harness,
    Provider,
    ProviderError,
    millponds_own,
    module_harness,
    short_conf,
)
from integration.jvm import MILLPOND
from integration.processes import wait_until
from integration.store_cases import STRINGS, commit_strings, strings_of
from integration.store_model import write_spark_metadata
from millpond.format.changelog import ChangelogReader, ChangelogWriter

pytestmark = [pytest.mark.spark, millponds_own]

harness = module_harness


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a new Spark checkpoint."""
    path = tmp_path / "checkpoint"
    write_spark_metadata(
        path, operator_name="stateStoreSave", partitions=1, provider_class=MILLPOND
    )
    return path


def _provider(harness: Harness, checkpoint: Path, **options: str) -> Provider:
    conf = short_conf(
        {"minDeltasForSnapshot": 1, **{f"millpond.{k}": v for k, v in options.items()}}
    )
    conf |= {"spark.sql.shuffle.partitions": "1"}
    return harness.open(checkpoint / "state", provider_class=MILLPOND, schema=STRINGS, conf=conf)


def test_nobody_waits_while_a_changelog_goes_to_storage(harness: Harness, checkpoint: Path) -> None:
    provider = _provider(harness, checkpoint)
    commit_strings(provider, 0, {1: "one"})
    store = provider.store(1)
    store.put([2], ["two"])
    harness.meanwhile(
        "commit.publish",
        [
            {"do": "snapshot", "p": provider.name},
            {"do": "cleanup", "p": provider.name},
            {"do": "get", "s": store.name, "k": [2]},
            {"do": "put", "s": store.name, "k": [3], "v": ["late"]},
            {"do": "remove", "s": store.name, "k": [1]},
        ],
    )
    assert store.commit().version == 2
    snapshot, cleanup, got, put, removed = harness.happened()
    assert (snapshot, cleanup, got) == (None, None, ["two"])
    assert list(checkpoint.glob("state/0/0/1*.manifest"))
    # A write after the changelog would be in memory alone.
    assert isinstance(put, ProviderError) and isinstance(removed, ProviderError)
    store = provider.store(2)
    assert strings_of(store) == {1: "one", 2: "two"}
    store.abort()
    provider.close()


def test_maintenance_does_not_wait_for_a_restore(harness: Harness, checkpoint: Path) -> None:
    provider = _provider(harness, checkpoint)
    commit_strings(provider, 0, {1: "one"})
    provider.close()
    provider = _provider(harness, checkpoint)
    other = [{"do": "snapshot", "p": provider.name}, {"do": "cleanup", "p": provider.name}]
    harness.meanwhile("load.open", other)
    store = provider.store(1)
    assert harness.happened() == [None, None]
    assert strings_of(store) == {1: "one"}
    store.abort()
    provider.close()


def test_a_changelog_is_replaced_while_it_is_opened(harness: Harness, checkpoint: Path) -> None:
    """Another attempt of the batch commits between a restore's plan and its reads, in format 1."""
    provider, other = _provider(harness, checkpoint), _provider(harness, checkpoint)
    commit_strings(provider, 0, {1: "one"})
    attempt = other.store(1)
    attempt.put([2], ["two"])
    commit_strings(provider, 1, {2: "two"})
    provider.close()
    provider = _provider(harness, checkpoint)
    harness.meanwhile("load.opened", [{"do": "commit", "s": attempt.name}])
    store = provider.store(2)
    (committed,) = harness.happened()
    assert not isinstance(committed, ProviderError) and committed["version"] == 2
    assert strings_of(store) == {1: "one", 2: "two"}
    store.abort()
    provider.close()
    other.close()


def test_a_changelog_of_all_rows_takes_the_place_of_changes(
    harness: Harness, checkpoint: Path
) -> None:
    """An erasure writes a changelog anew between a restore's plan and its reads."""
    provider = _provider(harness, checkpoint)
    commit_strings(provider, 0, {1: "one", 2: "two"})
    provider.store(1).abort()
    provider.snapshot()
    store = provider.store(1)
    store.remove([1])
    store.commit()
    provider.close()
    provider = _provider(harness, checkpoint)
    harness.hold("load.opened")
    load = harness.begin("get_store", p=provider.name, s="late", version=2)
    wait_until(harness.is_holding, seconds=60, what="the load")
    folder = checkpoint / "state" / "0" / "0"
    first = ChangelogReader(io.BytesIO((folder / "1.changelog").read_bytes()))
    last = ChangelogReader(io.BytesIO((folder / "2.changelog").read_bytes()))
    (kept,) = (record for record in first if record.value is not None and b"two" in record.value)
    whole = replace(last.header, empty_base=True, lineage_base=1, lineage=("",))
    with (folder / "new").open("xb") as file:
        writer = ChangelogWriter(file, whole)
        writer.append(kept)
        writer.finish()
    (folder / "new").rename(folder / "2.changelog")
    harness.let_go()
    harness.join(load)
    assert harness.call("scan", s="late") == [[[2], ["two"]]]
    harness.call("abort", s="late")
    provider.close()


@pytest.mark.parametrize(
    "kind", ["LOCAL_DISK_FULL", "MEMORY_EXHAUSTED", "LOCAL_FILES_LOST", "SST_DAMAGED"]
)
def test_a_snapshot_is_passed_over_only_if_it_is_damaged(
    harness: Harness, checkpoint: Path, kind: str
) -> None:
    provider = _provider(harness, checkpoint)
    for version in range(3):
        commit_strings(provider, version, {version: "row"})
    store = provider.store(3)
    store.abort()
    provider.snapshot()
    assert (checkpoint / "state/0/0/3.manifest").exists()
    provider.close()
    provider = _provider(harness, checkpoint)
    harness.arm("disk.open", kind=kind)
    if kind in ("LOCAL_DISK_FULL", "MEMORY_EXHAUSTED"):
        with pytest.raises(ProviderError, match=kind):
            provider.store(3)
    else:
        provider.store(3).abort()
    harness.disarm()
    store = provider.store(3)
    assert strings_of(store) == {0: "row", 1: "row", 2: "row"}
    (used,) = store.metrics()["instance"].values()
    assert used == (0 if kind == "SST_DAMAGED" else 3)
    store.abort()
    provider.close()
