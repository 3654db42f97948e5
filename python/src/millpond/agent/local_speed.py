"""How fast the disk below `localDir` is. The agent looks once, at its start, in the background."""

from __future__ import annotations

import logging
import os
import re
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millpond import events

log = logging.getLogger(__name__)

MIB = 1 << 20
_WRITTEN_BYTES = 2 * MIB
_BLOCK_BYTES = 8192  # as of the disk tier
_READS = 16
# Below that a disk of these days is either broken, or not in this machine. A hard disk, which
# needs 8 ms to find a block, is told of, too.
_SLOW_WRITE_MIB_S = 20
_SLOW_READ_MS = 2.0
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs")
_NETWORK_FUSE = ("sshfs", "s3fs", "gcsfuse", "blobfuse", "glusterfs", "rclone", "goofys", "juicefs")
# A file in the directory: an agent of this JVM has measured it.
_MEASURED = "speed-measured"
_ONCE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_AGAIN, _PAUSE_S = 2, 1.0
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")  # how the kernel writes a blank in a name: \040


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of a directory."""

    write_mib_s: float  # with the sync
    read_ms: float  # one block that is not in memory, if the file system lets one say so


def check_speed(directory: str) -> None:
    """Log the event `local_disk_slow` if the directory's disk is slow, or not in this machine.

    Takes milliseconds on a good disk. A slow one is measured again, as others may have used it. A
    disk that cannot be measured is told in the log. A directory is measured once: the agent of a
    JVM may die, and another one start.
    """
    kind = kind_of(directory, _mounts())
    try:
        os.close(os.open(os.path.join(directory, _MEASURED), _ONCE, 0o600))
        speed = measure(directory)
        for _ in range(_AGAIN):
            if not why_slow("", speed):
                break
            time.sleep(_PAUSE_S)
            speed = better(speed, measure(directory))
    except FileExistsError:
        return
    except OSError as e:  # it may be full; the store that needs it says so
        log.info("local disk not measured directory=%s: %s", directory, e)
        return
    reason = why_slow(kind, speed)
    if reason:
        events.emit(
            "local_disk_slow",
            directory=directory,
            write_mib_s=round(speed.write_mib_s),
            read_us=round(speed.read_ms * 1000),
            reason=reason,
        )


def measure(directory: str) -> Speed:
    """Write a file, sync it, read single blocks of it, and remove it. Raises: OSError."""
    path = os.path.join(directory, "speed")
    data = os.urandom(_WRITTEN_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        begun = time.perf_counter()
        os.write(descriptor, data)
        os.fsync(descriptor)
        written_s = time.perf_counter() - begun
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        took = []
        for number in range(_READS):
            # from the end, so that nothing is read ahead
            at = _WRITTEN_BYTES - (number + 1) * (_WRITTEN_BYTES // _READS)
            begun = time.perf_counter()
            os.pread(descriptor, _BLOCK_BYTES, at)
            took.append(time.perf_counter() - begun)
    finally:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(path)
    return Speed(_WRITTEN_BYTES / MIB / max(written_s, 1e-9), statistics.median(took) * 1000)


def better(one: Speed, other: Speed) -> Speed:
    """Return the best of two."""
    return Speed(max(one.write_mib_s, other.write_mib_s), min(one.read_ms, other.read_ms))


def kind_of(directory: str, mounts: str) -> str:
    """Return the type of the file system of a directory, `nfs4` for one; "" if it is unknown.

    Args:
        mounts: the text of /proc/self/mountinfo, its bytes decoded as the names of files are.
    """
    real = os.path.realpath(directory)
    best, kind = "", ""
    for line in mounts.split("\n"):  # no other end of a line: names may hold it as it is
        fields, separator, more = line.partition(" - ")
        if not separator:
            continue
        point = _unescaped(fields.split(" ")[4])
        below = real == point or real.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(best):  # of two at one place the later one counts
            best, kind = point, more.split(" ")[0]
    return kind


def why_slow(kind: str, speed: Speed) -> str:
    """Return why a local directory should be elsewhere; "" if it is good."""
    if kind in _NETWORK or any(name in kind for name in _NETWORK_FUSE):
        return f"the file system is {kind}, over a network"
    if speed.write_mib_s < _SLOW_WRITE_MIB_S:
        return f"less than {_SLOW_WRITE_MIB_S} MiB/s"
    if speed.read_ms > _SLOW_READ_MS:
        return f"more than {_SLOW_READ_MS:g} ms for a block"
    return ""


def _mounts() -> str:
    try:
        return os.fsdecode(_MOUNTS.read_bytes())
    except OSError:  # no Linux
        return ""


def _unescaped(name: str) -> str:
    as_byte = _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), os.fsencode(name))
    return os.fsdecode(as_byte)
