"""Measures what a process holds, from /proc. Growth above a bound counts as a leak."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# How much one process may grow between the first and the last measurements of the steady part. The
# executors' heap has its full size from the start (-Xms = -Xmx, touched). So growth of the RSS is
# memory outside of the heap.
EXECUTOR_BOUNDS = {"rss_kb": 64 * 1024, "files": 16, "threads": 12}
AGENT_BOUNDS = {"rss_kb": 12 * 1024, "files": 8, "threads": 6}
# An executor has all files of its local RocksDBs open. A store's tier has up to 8 new files, the
# files of the levels below, and some of its own. One executor may have loaded all stores.
LOCAL_FILES_PER_STORE = 24
_LOCAL = re.compile(r"/millpond-[0-9a-f-]{36}/.*/g\d+/")


@dataclass(frozen=True)
class Held:
    """What one process holds.

    `files` leaves out the open files of local RocksDBs. `local_files` counts them.
    """

    rss_kb: int
    files: int
    local_files: int
    threads: int


def held(pid: int) -> Held | None:
    """Return what a process holds now; None if it has ended."""
    try:
        status = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":" in line
        )
        files = [_target(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        local = sum(_LOCAL.search(name) is not None for name in files)
        return Held(
            int(status["VmRSS"].split()[0]), len(files) - local, local, int(status["Threads"])
        )
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return None


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""  # the process closed the file meanwhile


def collect_garbage(pid: int) -> bool:
    """Make a JVM collect garbage, classes included. The rest of its memory is in use.

    Return False without jcmd.
    """
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        return False
    return (
        subprocess.run(
            [jcmd, str(pid), "GC.run"], capture_output=True, timeout=60, check=False
        ).returncode
        == 0
    )


def median(samples: Sequence[Held]) -> Held:
    """Return the median of each number. A snapshot or a pause in one sample does not count."""
    return Held(
        **{
            name: round(statistics.median(asdict(s)[name] for s in samples))
            for name in asdict(samples[0])
        }
    )


def leaks(who: str, before: Held, after: Held, bounds: dict[str, int]) -> list[str]:
    """Return what grew beyond its bound, in words."""
    first, last = asdict(before), asdict(after)
    return [
        f"{who}: {name} grew from {first[name]} to {last[name]}, by more than {bound}"
        for name, bound in bounds.items()
        if last[name] - first[name] > bound
    ]


def folder_size(folder: Path) -> tuple[int, int]:
    """Return the number of files below a folder, and their bytes.

    A file that a query deletes meanwhile does not count.
    """
    files = bytes_ = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                bytes_ += path.stat().st_size
                files += 1
        except FileNotFoundError:
            continue
    return files, bytes_
