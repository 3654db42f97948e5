"""A session with default settings in a container's limit: state is larger than what is left of it,
and nobody is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness import providers_to_test
from integration.jvm import MILLPOND
from integration.memory_limit_job import ROWS_A_BATCH, TEXT_CHARACTERS
from integration.processes import wait_until
from integration.test_events import events
from millpond.agent.memory_budget import MIB

pytestmark = [
    pytest.mark.spark,
    pytest.mark.deep,
    pytest.mark.skipif(MILLPOND not in providers_to_test(), reason="about Millpond's memory"),
]

LIMIT_MIB = 1280
BATCHES = 12
WAIT_S = 540


class ControlGroup:
    """A control group with a limit of memory, of version 1 or 2."""

    def __init__(self) -> None:
        first = Path("/sys/fs/cgroup/memory")
        self.is_first = (first / "memory.limit_in_bytes").exists()
        root = first if self.is_first else Path("/sys/fs/cgroup")
        self.path = root / f"millpond-test-{os.getpid()}"
        limit = "memory.limit_in_bytes" if self.is_first else "memory.max"
        self.path.mkdir()
        try:
            (self.path / limit).write_text(str(LIMIT_MIB * MIB))
        except OSError:
            self.path.rmdir()
            raise

    def enter(self) -> None:
        """Put this process into the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def kills(self) -> int:
        """How many processes the kernel killed."""
        text = (
            self.path / ("memory.oom_control" if self.is_first else "memory.events")
        ).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def remove(self) -> None:
        """Remove the group once its processes are gone."""

        def gone() -> bool:
            return not (self.path / "cgroup.procs").read_text().split()

        wait_until(gone, seconds=60, what="the end of all processes in the control group")
        self.path.rmdir()


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    try:
        made = ControlGroup()
    except OSError as e:
        pytest.skip(f"no control group with a limit of memory can be made here: {e}")
    yield made
    made.remove()


def test_state_beyond_the_limit_by_default_settings(group: ControlGroup, tmp_path: Path) -> None:
    job = [sys.executable, "-m", "integration.memory_limit_job", str(tmp_path), str(BATCHES)]
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            job,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=WAIT_S,
            preexec_fn=group.enter,
        )
    text = (tmp_path / "log").read_text()
    assert group.kills == 0, text[-4000:]
    assert done.returncode == 0, text[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    (planned,) = [e for e in events(text) if e["event"] == "memory_planned"]
    assert planned["reason"].startswith(f"half of the room; limit {LIMIT_MIB} - heap ")
    budget = int(planned["bytes"])
    assert 32 * MIB < budget < 0.3 * 512 * MIB
    assert said["batches"] >= BATCHES and said["rows"] >= BATCHES * ROWS_A_BATCH
    assert said["rows"] * TEXT_CHARACTERS > 3 * budget and said["disk_reads"] > 0
