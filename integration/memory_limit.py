"""Ten minutes of batches with a state of ten times the container's limit, by default settings.

    python -m integration.memory_limit [--limit-mib 1280] [--times 10] [--minutes 10]

It makes a control group with the limit, which needs root on most machines, fills the state, and
lets the query go on with keys from all over it. It prints a table: time, rows, what the processes
have in memory, how long a batch takes. Exit code 1: the kernel killed a process, or the query
failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from integration.control_group import ControlGroup
from integration.memory_limit_job import Load
from millpond.config import MIB

ROWS_A_BATCH = 10_000
TEXT_CHARACTERS = 4000


def main() -> int:
    """Run it. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--limit-mib", type=int, default=1280)
    parser.add_argument("--times", type=float, default=10, help="state as a multiple of the limit")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rows", type=int, default=ROWS_A_BATCH, help="rows of a batch")
    parser.add_argument("--characters", type=int, default=TEXT_CHARACTERS, help="of a row's text")
    parser.add_argument("--work", type=Path, help="directory for all files (default: a new one)")
    given = parser.parse_args()
    batches = int(given.times * given.limit_mib * MIB / (given.rows * given.characters)) + 1
    load = Load(
        rows_a_batch=given.rows,
        text_characters=given.characters,
        new_batches=batches,
        seconds=given.minutes * 60,
    )
    group = ControlGroup(given.limit_mib * MIB)
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        work = Path(folder)
        try:
            return _run(group, load, work)
        finally:
            group.remove()


def _run(group: ControlGroup, load: Load, work: Path) -> int:
    log = work / "log"
    command = [sys.executable, "-m", "integration.memory_limit_job", str(work), load.text()]
    with log.open("w") as errors:
        job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=group.enter
        )
    ended = threading.Event()
    highest = [0]

    def watch() -> None:
        while not ended.wait(0.5):
            highest[0] = max(highest[0], group.resident_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    print(
        "minute\trows\tstate MiB\tmemory tier MiB\tresident MiB\thighest MiB\ts a batch\tdisk reads"
    )
    assert job.stdout is not None
    for line in job.stdout:
        said = json.loads(line)
        cells = [
            f"{(time.monotonic() - start) / 60:.1f}",
            said["rows"],
            said["rows"] * load.text_characters // MIB,
            said["memory_bytes"] // MIB,
            group.resident_bytes // MIB,
            highest[0] // MIB,
            said.get("s_a_batch", ""),
            said["disk_reads"],
        ]
        print("\t".join(map(str, cells)), flush=True)
    code = job.wait()
    ended.set()
    watcher.join()
    for event in log.read_text().splitlines():
        if "memory_" in event:
            print(event)
    print(f"exit code {code}, killed by the kernel {group.kills}")
    if code or group.kills:
        print(log.read_text()[-4000:])
    return int(bool(code or group.kills))


if __name__ == "__main__":
    sys.exit(main())
