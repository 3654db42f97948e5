# SPDX-License-Identifier: Apache-2.0
"""Recovery of a query of Nexmark on Spark: it is killed in the middle of a batch, and comes back.

A first process reads two thirds of the files. Then all its processes get signal 9, while they work
on the next one. A second process starts from the Spark checkpoint and works off what is left: the
batch that was cut off, and the files after it.

The commit of the batch that is to be cut off is held back (`HoldingFileManager.scala`): if it takes
less than expected, it still has not ended when it is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_env import BenchError
from benchmarks.bench_process import kill_when, run_spec
from integration.jvm import holding

_LOGS = ("offsets", "commits")


def committed_of(files: int) -> int:
    """Return how many batches the first process commits, of as many as there are files."""
    return files * 2 // 3


def mid_batch(checkpoint: Path, number: int) -> Callable[[], bool]:
    """Return what says when a batch is in the middle of its work.

    That is half of what the batch before took, from its entry in the log of offsets to that in the
    log of commits.
    """

    def due() -> bool:
        began = _at(checkpoint / "offsets" / str(number))
        if began is None:
            return False
        offsets, commits = (_at(checkpoint / log / str(number - 1)) for log in _LOGS)
        if offsets is None or commits is None:
            raise BenchError(f"{checkpoint}: batch {number} began before batch {number - 1} ended")
        return time.time() >= began + (commits - offsets) / 2

    return due


def _at(entry: Path) -> float | None:
    """Return when an entry of a log was written. None: it is not there."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return None


def recover(
    command: Sequence[str],
    spec: Mapping[str, Any],
    checkpoint: Path,
    files: int,
    *,
    work_dir: Path,
    timeout_s: float,
) -> dict[str, Any]:
    """Return what the second process returned, and how long it took until the query was back.

    `first_commit_s` and `caught_up_s` are seconds from its start: until the batch that was cut off
    is committed, and until the last file is.

    Args:
        spec: with the session's settings, `conf`, whose class path has those of the tests.
        checkpoint: that of the query.
        files: how many batches it has in all.

    Raises: BenchError: a process failed, or no batch was cut off.
    """
    number = committed_of(files)
    due = mid_batch(checkpoint, number)
    cut = {**spec, "conf": spec["conf"] | holding(f"commits/{number}", work_dir / "held")}
    kill_when(due, command, cut, work_dir=work_dir, timeout_s=timeout_s)
    commits = checkpoint / "commits"
    if (commits / str(number)).exists():
        raise BenchError(f"batch {number} ended before its process was killed")
    began = time.time()
    raw = run_spec(command, spec, work_dir=work_dir, timeout_s=timeout_s)
    first, last = (_at(commits / str(batch)) for batch in (number, files - 1))
    if first is None or last is None:
        raise BenchError(f"{commits} lacks batch {number} or {files - 1}")
    return raw | {
        "committed": number,
        "backlog_files": files - number,
        "first_commit_s": first - began,
        "caught_up_s": last - began,
    }
