"""Tasks are killed while they wait for the agent to start, or to end. Processes end slowly."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.harness import Harness, millponds_own
from integration.processes import agents_below, listeners, wait_until
from integration.store_cases import open_provider, write

pytestmark = [pytest.mark.spark, millponds_own]

TASKS = 8


def test_killed_tasks_leave_no_port_open(own_harness: Harness, tmp_path: Path) -> None:
    """The shim listens for each agent that it starts."""
    harness = own_harness
    provider = open_provider(harness, tmp_path / "checkpoint")
    write(provider, 0).commit()
    (agent,) = agents_below(harness.pid)
    before = listeners(harness.pid)
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not harness.call("agent_runs"), seconds=60, what="the agent's end")
    assert harness.call("ask_killed", tasks=TASKS) == TASKS
    wait_until(
        lambda: listeners(harness.pid) < before, seconds=20, what="the ports of killed starts"
    )
    assert not agents_below(harness.pid)
    write(provider, 1).commit()
    assert len(agents_below(harness.pid)) == 1
    assert listeners(harness.pid) == before
    provider.close()


def test_a_killed_task_that_ends_the_agent_closes_its_port(
    own_harness: Harness, tmp_path: Path
) -> None:
    harness = own_harness
    provider = open_provider(harness, tmp_path / "checkpoint")
    write(provider, 0).commit()
    before = listeners(harness.pid)
    harness.call("end_killed")
    wait_until(lambda: listeners(harness.pid) < before, seconds=20, what="the port of the agent")
    write(provider, 1).commit()
    assert listeners(harness.pid) == before
    provider.close()


@pytest.mark.parametrize("by", ["a-task", "the-host"])
def test_an_agent_that_ends_slowly_is_not_asked(
    own_harness: Harness, tmp_path: Path, by: str
) -> None:
    """The process lives for a moment after its kill, but nobody answers any more."""
    harness = own_harness
    provider = open_provider(harness, tmp_path / "checkpoint")
    write(provider, 0).commit()
    (agent,) = agents_below(harness.pid)
    harness.call("agent_lingers")
    if by == "a-task":
        harness.call("end_killed")
    else:
        os.kill(agent, signal.SIGKILL)
    wait_until(lambda: agent not in agents_below(harness.pid), seconds=60, what="the agent's end")
    write(provider, 1).commit()
    (other,) = agents_below(harness.pid)
    assert other != agent
    provider.close()
