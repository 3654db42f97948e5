"""Damaged, missing, foreign and future files.

Each must end in the right error or the right fallback, never in a wrong row.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration.cases import CLICKS, EVENTS
from integration.damage_scene import Scene, written_scene
from integration.depth import by_turns, quick_first
from integration.harness import Harness, ProviderError, Schema, millponds_own, module_harness
from integration.jvm import MILLPOND
from integration.store_cases import open_provider
from integration.streams import Input, Run, finish, start
from millpond.format.changelog import ChangelogReader, Op

pytestmark = millponds_own

Harm = Callable[[Path], None]

harness = module_harness


def _file(scene: Scene, version: int, suffix: str) -> Path:
    (found,) = [
        p for p in scene.directory.glob(f"*.{suffix}") if p.stem.split("_")[0] == str(version)
    ]
    return found


def _truncate(share: float) -> Harm:
    def harm(path: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    return harm


def _flip(share: float) -> Harm:
    def harm(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(len(data) * share), len(data) - 1)] ^= 0x10
        path.unlink()  # other hard links of the file must keep their bytes
        path.write_bytes(bytes(data))

    return harm


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


HARMS: dict[str, Harm] = {
    "missing": Path.unlink,
    "empty": _truncate(0.0),
    "half": _truncate(0.5),
    "without-end": _truncate(0.98),
    "longer": _append,
    **{f"flipped-{share}": _flip(share) for share in (0.0, 0.01, 0.2, 0.5, 0.9, 0.999)},
}


# -- files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("harm", "checkpoint_format"), by_turns(HARMS))
def test_damaged_changelog_is_an_error_that_names_it(
    harness: Harness, tmp_path: Path, harm: str, checkpoint_format: int
) -> None:
    """No snapshot covers the changelog. The store refuses versions that need it, and no others."""
    scene = written_scene(harness, tmp_path, checkpoint_format)
    path = _file(scene, 8, "changelog")
    HARMS[harm](path)
    text = scene.refuses(8, "CHANGELOG_MISSING" if harm == "missing" else "CHANGELOG_DAMAGED")
    assert path.name in text
    for version in (0, 1, 4, 6, 7):
        assert scene.read(version) == scene.states[version], version


@pytest.mark.parametrize(
    ("codec", "stored"), [(1, b"\x1f\x01" + bytes(18)), (2, zstandard.compress(bytes(100)))]
)
def test_a_block_that_claims_a_gigabyte_is_not_inflated(
    harness: Harness, tmp_path: Path, codec: int, stored: bytes
) -> None:
    """The block's sums are right, so a person made it. An executor must not allocate a gigabyte."""
    scene = written_scene(harness, tmp_path)
    path = _file(scene, 8, "changelog")
    data = path.read_bytes()
    start = 16 + struct.unpack_from("<I", data, 8)[0]
    head = struct.pack("<IIIB3s", 1 << 30, len(stored), 1, codec, bytes(3))
    path.unlink()
    path.write_bytes(
        data[:start] + head + struct.pack("<I", zlib.crc32(head + stored)) + stored + data[-36:]
    )
    text = scene.refuses(8, "CHANGELOG_DAMAGED")
    assert "stand for" in text and path.name in text
    assert scene.read(7) == scene.states[7]


@pytest.mark.parametrize("harm", quick_first(HARMS, 5))
def test_damaged_changelog_below_a_snapshot_does_not_matter_above_it(
    harness: Harness, tmp_path: Path, harm: str
) -> None:
    """Version 4 needs the snapshot of 2 and the changelogs 3 and 4. Version 5 has a snapshot."""
    scene = written_scene(harness, tmp_path)
    HARMS[harm](_file(scene, 4, "changelog"))
    for version in (2, 3, 5, 6, 8):
        assert scene.read(version) == scene.states[version], version
    scene.refuses(4, "CHANGELOG_MISSING" if harm == "missing" else "CHANGELOG_DAMAGED")


@pytest.mark.parametrize(("harm", "checkpoint_format"), by_turns(HARMS))
def test_damaged_manifest_falls_back(
    harness: Harness, tmp_path: Path, harm: str, checkpoint_format: int
) -> None:
    """An older manifest and more changelogs give the same rows."""
    scene = written_scene(harness, tmp_path, checkpoint_format)
    HARMS[harm](_file(scene, 5, "manifest"))
    for version in (4, 5, 6, 8):
        assert scene.read(version) == scene.states[version], version
    HARMS[harm](_file(scene, 2, "manifest"))
    for version in (2, 5, 8):
        assert scene.read(version) == scene.states[version], version


@pytest.mark.parametrize("harm", [h for h in HARMS if h != "longer"])
def test_damaged_sst_falls_back(harness: Harness, tmp_path: Path, harm: str) -> None:
    """More and more SSTs are damaged. All changelogs are there, so every row is."""
    scene = written_scene(harness, tmp_path)
    for path in sorted((scene.directory / "sst").iterdir(), key=lambda p: p.stat().st_mtime):
        HARMS[harm](path)
        for version in (5, 8):
            try:
                found = scene.read(version, **{"restore.verifyChecksums": True})
            except ProviderError as error:  # the store must fall back to the changelogs
                raise AssertionError(f"changelogs 1 to {version} are all there: {error}") from error
            assert found == scene.states[version], version


@pytest.fixture
def telling(tmp_path: Path) -> Iterator[Harness]:
    """A JVM whose log has warnings."""
    started = Harness(tmp_path, conf={"spark.millpond.harness.log": "WARN"})
    yield started
    started.stop()


def test_damaged_sst_without_check_sums_is_never_a_wrong_row(
    telling: Harness, tmp_path: Path
) -> None:
    """Without `restore.verifyChecksums`, RocksDB's own check sums of blocks find the damage."""
    scene = written_scene(telling, tmp_path)
    paths = sorted((scene.directory / "sst").iterdir())
    clean = {p: p.read_bytes() for p in paths}
    refused = 0
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99):
        for path in paths:
            _flip(share)(path)
        try:
            assert scene.read(8) == scene.states[8]
        except ProviderError as error:
            assert "[MILLPOND_SST_DAMAGED]" in error.text, error.text
            refused += 1
        for path, data in clean.items():
            path.write_bytes(data)
    assert refused or "event=snapshot_passed_over" in telling.log_path.read_text()
    assert scene.read(8) == scene.states[8]


@pytest.mark.parametrize("harm", [h for h in HARMS if h != "longer"])
@pytest.mark.parametrize("check_sums", [True, False])
def test_damaged_sst_without_changelogs_is_never_a_wrong_row(
    harness: Harness, tmp_path: Path, harm: str, check_sums: bool
) -> None:
    """A version has only the SST. The store gives the right rows, or refuses."""
    scene = written_scene(harness, tmp_path)
    for version in range(1, 6):
        _file(scene, version, "changelog").unlink()
    for version in (5, 6, 8):
        assert scene.read(version) == scene.states[version], version
    for path in (scene.directory / "sst").iterdir():
        HARMS[harm](path)
    options = {"restore.verifyChecksums": check_sums}
    try:
        found = scene.read(8, **options)
    except ProviderError as error:
        # RocksDB does not say which file has the damaged block. Then the error names the manifest.
        assert any(
            f"[MILLPOND_{k}" in error.text
            for k in ("SST_", "CHANGELOG_MISSING", "MANIFEST_DAMAGED")
        ), error.text
        assert "Hint: " in error.text
    else:
        assert not check_sums, "no check sum found the damage"
        assert found == scene.states[8]


def test_nothing_left_to_read_from(harness: Harness, tmp_path: Path) -> None:
    """Without the snapshot and the changelogs below it, the store refuses. It is not empty."""
    scene = written_scene(harness, tmp_path)
    for version in range(1, 6):
        _file(scene, version, "changelog").unlink()
    shutil.rmtree(scene.directory / "sst")
    for version in (5, 6, 8):
        scene.refuses(version, "SST_MISSING", "CHANGELOG_MISSING", "VERSION_EXPIRED")
    shutil.rmtree(scene.directory)
    scene.refuses(8, "CHANGELOG_MISSING", "VERSION_NOT_FOUND", "VERSION_EXPIRED")


def test_leftovers_of_a_killed_writer_are_ignored(harness: Harness, tmp_path: Path) -> None:
    """Reads and writes ignore half a staging file, an unnamed SST, and files of others."""
    scene = written_scene(harness, tmp_path)
    data = _file(scene, 8, "changelog").read_bytes()
    (scene.directory / (".staging-" + "0" * 32)).write_bytes(data[: len(data) // 2])
    (scene.directory / "sst" / ("f" * 32 + ".sst")).write_bytes(b"half an upload")
    (scene.directory / "notes.txt").write_text("left by a person")
    assert scene.read(8) == scene.states[8]
    provider = scene.open()
    scene.write(provider, 2, snapshot_at=(10,))
    provider.cleanup()
    provider.close()
    assert scene.read(10) == scene.states[10]


@pytest.mark.parametrize("newer", [{"required_features": ["time travel"]}, None])
def test_newer_format_is_refused(
    harness: Harness, tmp_path: Path, newer: dict[str, Any] | None
) -> None:
    """With a format.json of a later Millpond, the store reads nothing and overwrites nothing."""
    scene = written_scene(harness, tmp_path)
    path = scene.checkpoint / "millpond" / "format.json"
    head, body = path.read_bytes().split(b"\n", 1)
    if newer is None:
        path.write_bytes(head.replace(b"MILLPOND format 1", b"MILLPOND format 2") + b"\n" + body)
    else:
        body = json.dumps({**json.loads(body), **newer}).encode()
        path.write_bytes(b"MILLPOND format 1 %08x %d\n" % (zlib.crc32(body), len(body)) + body)
    before = path.read_bytes()
    scene.refuses(8, "FORMAT_TOO_NEW")
    assert path.read_bytes() == before


def _with_header(data: bytes, *, file_format: int = 1, flags: int) -> bytes:
    """Return a changelog with another format and flags in its header, and the right sum."""
    end = 12 + struct.unpack_from("<I", data, 8)[0]
    head = data[:4] + struct.pack("<HH", file_format, flags) + data[8:end]
    return head + struct.pack("<I", zlib.crc32(head)) + data[end + 4 :]


@pytest.mark.parametrize(("file_format", "flags"), [(1, 2), (1, 3), (1, 0x8000), (2, 0)])
def test_changelog_of_a_newer_version_is_not_called_damaged(
    harness: Harness, tmp_path: Path, file_format: int, flags: int
) -> None:
    scene = written_scene(harness, tmp_path)
    path = _file(scene, 8, "changelog")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(_with_header(data, file_format=file_format, flags=flags))
    assert path.name in scene.refuses(8, "FORMAT_TOO_NEW")
    path.write_bytes(_with_header(data, flags=1))
    assert scene.read(8) == scene.states[8], "this version must read a flag that it knows"


def test_a_changelog_says_that_keys_repeat(harness: Harness, tmp_path: Path) -> None:
    """A flag says that a changelog may repeat keys, so that older readers refuse it.

    Keys repeat when a list grows, and when a batch spills. An older reader must not call that
    damage.
    """
    checkpoint = tmp_path / "checkpoint"
    lists = Schema("k bigint", "v string", multi=True)
    conf = {"millpond.memory.budget": "256k"}
    provider = open_provider(
        harness, checkpoint, operator="stateStoreSave", schema=lists, conf=conf
    )
    plain = open_provider(
        harness,
        checkpoint,
        operator="stateStoreSave",
        schema=Schema("k bigint", "v string"),
        conf=conf,
        partition=1,
    )
    store = provider.store(0)
    store.put_list([1], [["a"]])
    store.commit()
    store = provider.store(1)
    store.merge([1], ["b"])
    store.commit()
    for version in range(2):
        store = plain.store(version)
        for value in ("first", "again"):
            store.put_many([([k], [value * 20]) for k in range(20_000 if version else 1)])
        store.commit()
    flags = {}
    for partition in (0, 1):
        for path in sorted((checkpoint / "state" / "0" / str(partition)).glob("*.changelog")):
            data = path.read_bytes()
            flags[partition, path.name] = struct.unpack_from("<H", data, 6)[0]
    assert flags == {
        (0, "1.changelog"): 1,
        (0, "2.changelog"): 1,
        (1, "1.changelog"): 0,
        (1, "2.changelog"): 1,
    }
    with (checkpoint / "state/0/0/2.changelog").open("rb") as file:
        assert [record.op for record in ChangelogReader(file)] == [Op.MERGE]
    with (checkpoint / "state/0/1/2.changelog").open("rb") as file:
        keys = [record.key for record in ChangelogReader(file)]
    assert len(set(keys)) < len(keys), "the spilled batch has a key twice"
    provider.close()
    plain.close()
    # Older versions wrote such a file without the flag.
    path = checkpoint / "state/0/0/2.changelog"
    path.write_bytes(_with_header(path.read_bytes(), flags=0))
    provider = open_provider(
        harness, checkpoint, operator="stateStoreSave", schema=lists, conf=conf
    )
    assert provider.read_store(2).values([1]) == [["a"], ["b"]]
    provider.close()


@pytest.mark.parametrize("harm", [h for h in HARMS if h != "missing"])
def test_damaged_format_file(harness: Harness, tmp_path: Path, harm: str) -> None:
    """The store refuses, because it cannot guess max parallelism."""
    scene = written_scene(harness, tmp_path)
    HARMS[harm](scene.checkpoint / "millpond" / "format.json")
    scene.refuses(8, "FORMAT_DAMAGED", "FORMAT_TOO_NEW")


def test_damaged_state_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails with the store's error and its hint."""
    source = Input(tmp_path / "input", EVENTS)
    frame = source.stream(spark).groupBy("k").agg(F.sum("v").alias("s"))
    run = Run(tmp_path / "checkpoint")
    conf = {"spark.sql.streaming.stateStore.providerClass": MILLPOND}
    source.add(CLICKS[0])
    finish(start(spark, frame, run, output_mode="complete", conf=conf), run)
    for path in (tmp_path / "checkpoint" / "state" / "0").glob("*/1.changelog"):
        _flip(0.5)(path)
    source.add(CLICKS[1])
    query = start(spark, frame, run, output_mode="complete", conf=conf)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    assert "MILLPOND_CHANGELOG_DAMAGED" in str(caught.value), str(caught.value)[:2000]
    assert "Hint:" in str(caught.value)
