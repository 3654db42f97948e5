"""A session with default settings in a container's limit: state is larger than what is left of it,
and nobody is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.control_group import ControlGroup
from integration.harness import millponds_own
from integration.memory_limit_job import Load
from integration.test_events import events
from millpond.agent.memory_budget import MIB

pytestmark = [
    pytest.mark.spark,
    pytest.mark.deep,
    millponds_own,
]

LIMIT_MIB = 1280
_OPTIONS = "spark.sql.streaming.stateStore.millpond."
LOAD = Load(rows_a_batch=20_000, text_characters=1500, new_batches=12)
WAIT_S = 540


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    try:
        made = ControlGroup(LIMIT_MIB * MIB)
    except OSError as e:
        pytest.skip(f"no control group with a limit of memory can be made here: {e}")
    yield made
    made.remove()


def test_state_beyond_the_limit_by_default_settings(group: ControlGroup, tmp_path: Path) -> None:
    job = [sys.executable, "-m", "integration.memory_limit_job", str(tmp_path), LOAD.text()]
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
    assert said["rows"] >= LOAD.new_rows
    assert said["rows"] * LOAD.text_characters > 3 * budget and said["disk_reads"] > 0


def test_a_limit_below_the_heap_is_refused(tmp_path: Path) -> None:
    """Before a task keeps anything. Who sets the budget goes on at his own risk."""
    try:
        group = ControlGroup(1600 * MIB)
    except OSError as e:
        pytest.skip(f"no control group with a limit of memory can be made here: {e}")
    load = Load(
        rows_a_batch=100, text_characters=8, new_batches=1, heap_mib=2048, is_resident=False
    )
    own = replace(load, conf=((f"{_OPTIONS}memory.budget", "32m"),))
    try:
        for name, wanted, code in (("refused", load, 1), ("goes-on", own, 0)):
            work = tmp_path / name
            work.mkdir()
            done = subprocess.run(
                [sys.executable, "-m", "integration.memory_limit_job", str(work), wanted.text()],
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                preexec_fn=group.enter,
                check=False,
            )
            assert group.kills == 0, done.stderr[-4000:]
            assert done.returncode == code, done.stderr[-4000:]
            assert ("[MILLPOND_MEMORY_EXHAUSTED]" in done.stderr) == (code == 1)
    finally:
        group.remove()
