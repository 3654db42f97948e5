"""Runs `job.py` in processes of its own, and kills them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from integration.jvm import MILLPOND, compile_harness, holding
from integration.peers.kafka.broker import Broker
from integration.processes import agents_below, alive, wait_until
from integration.test_crash import Job


@dataclass(frozen=True)
class Jobs:
    """Starts one job again and again.

    work: its directory. settings: what `job.json` says. conf: settings of its sessions.
    """

    work: Path
    kafka: Broker
    connectors: list[Path]
    format: str
    settings: Mapping[str, object]
    conf: Mapping[str, str] = field(default_factory=dict)

    def start(self, hold: str | None = None) -> Job:
        """Start the job. With `hold` it never writes that file of its Spark checkpoint."""
        said = {"servers": self.kafka.servers, **self.settings}
        (self.work / "job.json").write_text(json.dumps(said))
        jars = os.pathsep.join(map(str, [compile_harness(), *self.connectors]))
        conf = {"spark.driver.extraClassPath": jars, **self.conf}
        if hold is not None:
            conf |= holding(hold, self.work / "held")
        module = "integration.peers.kafka.job"
        return Job(self.work, int(self.format), MILLPOND, conf, module=module)

    @property
    def checkpoint(self) -> Path:
        """Return the Spark checkpoint."""
        return self.work / "checkpoint"

    def wait_for(self, job: Job, batch: int) -> None:
        """Wait for the commit of a batch. Raises: AssertionError: the job ended before."""
        commit = self.checkpoint / "commits" / str(batch)
        wait_until(
            lambda: commit.exists() or job.process.poll() is not None,
            seconds=120,
            what=f"batch {batch}",
        )
        assert job.process.poll() is None, job.report()

    def kill_when_held(self, job: Job) -> None:
        """Kill the driver with -9 as soon as it is about to write the file `hold`."""
        held = self.work / "held"
        wait_until(
            lambda: held.exists() or job.process.poll() is not None, seconds=120, what="the commit"
        )
        assert held.exists(), job.report()
        kill(job)
        held.unlink()


def kill(job: Job) -> None:
    """Kill the driver with -9. Its agents end with it."""
    agents = agents_below(job.jvm)
    os.kill(job.jvm, signal.SIGKILL)
    assert job.end() != 0
    wait_until(lambda: not any(alive(agent) for agent in agents), seconds=5, what="the agents")
