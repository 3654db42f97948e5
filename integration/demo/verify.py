"""Asks `millpond checkpoint verify` whether it can read everything that a job left on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.demo.child import environment

TIMEOUT_S = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the command read. Every check sum was right, except where `problems` says otherwise."""

    changelogs: int
    snapshots: int
    ssts: int
    versions: int  # that can be restored
    bytes: int
    problems: tuple[str, ...]


def verify(checkpoint: Path, work: Path, tag: str, on: Sequence[str] = ()) -> Verified:
    """Run `millpond checkpoint verify --json` on the Spark checkpoint of one stopped query.

    Args:
        on: precedes the command, such as what lets it run on another host.
    """
    done = subprocess.run(
        [
            *on,
            sys.executable,
            "-m",
            "millpond.cli.main",
            "checkpoint",
            "verify",
            str(checkpoint),
            "--json",
        ],
        env=environment(work, tag),
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    try:
        report = json.loads(done.stdout)
        checked = report["checked"]
        return Verified(
            changelogs=checked["changelogs"],
            snapshots=checked["manifests"],
            ssts=checked["ssts"],
            versions=checked["versions"],
            bytes=checked["changelog_bytes"] + checked["sst_bytes"],
            problems=tuple(map(str, report["problems"])),
        )
    except (ValueError, KeyError) as error:
        problem = (
            f"millpond checkpoint verify ended with exit code {done.returncode}:"
            f" {done.stderr.strip() or error}"
        )
        return Verified(changelogs=0, snapshots=0, ssts=0, versions=0, bytes=0, problems=(problem,))
