"""The speed of the disk for local state."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from millpond.agent import local_speed
from millpond.agent.local_speed import Speed, better, check_speed, kind_of, measure, why_slow

GOOD = Speed(write_mib_s=400, read_ms=0.1)
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw shared:2 - nfs4 host:/export rw
31 30 8:2 / /data/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /with\\040space rw - fuse.sshfs me@host:/x rw
33 22 0:42 / /twice rw - tmpfs tmpfs rw
35 22 0:44 / /grö\\040ße\\134x rw shared:3 - lustre mgs@tcp:/x rw
36 22 0:45 / /fünf\x85\u2003mal rw - ceph mon:/x rw
34 22 0:43 / /twice rw - cifs //host/x rw
no line of a mount
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/database", "ext4"),
        ("/data", "nfs4"),
        ("/data/x/y", "nfs4"),
        ("/data/local/x", "xfs"),
        ("/with space/x", "fuse.sshfs"),
        ("/grö ße\\x/y", "lustre"),
        ("/grö ße", "ext4"),
        ("/fünf\x85\u2003mal/x", "ceph"),
        ("/twice/x", "cifs"),
    ],
)
def test_the_file_system_of_a_directory(path: str, kind: str) -> None:
    assert kind_of(path, MOUNTS) == kind
    assert kind_of(path, "") == ""


def test_a_mount_whose_name_is_no_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was measured any more, and what dead executors had left stayed."""
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTS.encode() + b"37 22 0:46 / /caf\xe9\\040x rw - nfs host:/x rw\n")
    monkeypatch.setattr(local_speed, "_MOUNTS", table)
    mounts = local_speed._mounts()
    assert kind_of(os.fsdecode(b"/caf\xe9 x/y"), mounts) == "nfs"
    assert kind_of("/data/x", mounts) == "nfs4"


@pytest.mark.parametrize(
    ("kind", "speed", "reason"),
    [
        ("ext4", GOOD, ""),
        ("", GOOD, ""),
        ("nfs4", GOOD, "the file system is nfs4, over a network"),
        ("fuse.sshfs", GOOD, "the file system is fuse.sshfs, over a network"),
        ("fuseblk", GOOD, ""),
        ("ext4", Speed(write_mib_s=19, read_ms=0.1), "less than 20 MiB/s"),
        ("ext4", Speed(write_mib_s=400, read_ms=8), "more than 2 ms for a block"),
    ],
)
def test_what_is_slow(kind: str, speed: Speed, reason: str) -> None:
    assert why_slow(kind, speed) == reason


def test_the_best_of_several_counts() -> None:
    assert better(Speed(10, 0.5), Speed(30, 5)) == Speed(30, 0.5)


def test_a_real_disk_is_measured_and_left_clean(tmp_path: Path) -> None:
    begun = time.perf_counter()
    speed = measure(str(tmp_path))
    assert time.perf_counter() - begun > 2 / speed.write_mib_s > 0 and speed.read_ms > 0
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each sync takes longer than a disk of this machine would."""
    real = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.12)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(local_speed, "_PAUSE_S", 0)
    caplog.set_level(logging.INFO)
    for _ in range(2):
        check_speed(str(tmp_path))
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.name == "millpond.events"
    assert f"event=local_disk_slow directory={tmp_path} write_mib_s=1" in record.message
    assert 'reason="less than 20 MiB/s"' in record.message


def test_a_slow_moment_is_not_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    speeds = iter([Speed(5, 9), Speed(400, 0.1)])
    monkeypatch.setattr(local_speed, "measure", lambda directory: next(speeds))
    monkeypatch.setattr(local_speed, "_PAUSE_S", 0)
    check_speed(str(tmp_path))
    assert caplog.records == [] and next(speeds, None) is None


def test_a_disk_that_cannot_be_measured_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    check_speed(str(tmp_path / "nothing"))
    (record,) = caplog.records
    assert "local disk not measured" in record.message
