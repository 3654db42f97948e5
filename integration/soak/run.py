"""The soak: three stateful queries on a real cluster for a long time, with kills and pauses.

Run it by `python -m integration.soak.run --minutes 30`, or `make soak`. In the first part (60 % of
the time) it kills and pauses drivers, executors and agents at random. In the second part it lets
one executor and its agent live. It pauses these two, restarts the queries, and kills other
executors and agents. It measures what these two processes hold after a warm-up and at the end. The
exit code is 0 if nothing leaked, and if every row is equal to the batch computation.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from integration.cluster import Cluster, Executor
from integration.demo.verify import verify
from integration.soak import measure
from integration.soak.campaign import QUERIES, STORES, Campaign
from integration.soak.measure import AGENT_BOUNDS, EXECUTOR_BOUNDS, LOCAL_FILES_PER_STORE, Held
from integration.soak.queries import Row

CHAOS_SHARE = 0.6
SHORT_FAULTS = [
    "agent killed",
    "executor paused",
    "executor killed",
    "agent paused",
]
STEADY_FAULTS = [
    "other executor killed",
    "other agent killed",
    "executor paused",
    "agent paused",
    "queries restarted",
]
MAX_SAMPLES = 400


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="integration.soak.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--short",
        action="store_true",
        help="a form for CI: each fault once; --minutes is not heeded",
    )
    parser.add_argument("--seed", type=int, default=20240117)
    parser.add_argument(
        "--work", type=Path, help="folder for everything; kept. Else a temporary one"
    )
    parser.add_argument("--out", type=Path, help="file for the result as JSON; else stdout only")
    return parser.parse_args(arguments)


class Steady:
    """The second part: watches one executor and its agent. The soak does not kill them."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.survivor: Executor = self._choose()
        self.samples: dict[str, list[Held]] = {"executor": [], "agent": []}
        self.trace: list[dict[str, Any]] = []
        self.began = time.monotonic()

    def _choose(self) -> Executor:
        """Return an executor with an agent. After a kill, wait until an executor has one."""
        deadline = time.monotonic() + 120
        while True:
            found = [e for e in self.campaign.cluster.executors() if e.agent]
            if found:
                return found[0]
            assert time.monotonic() < deadline, "no executor has an agent"
            self.campaign.run(1.0)

    def pids(self) -> dict[str, int]:
        return {"executor": self.survivor.pid, "agent": self.survivor.agent}

    def measure(self, count: int) -> dict[str, Held]:
        """Return the median of `count` measurements, one a second, while the queries run.

        The executor collects its garbage before.
        """
        measure.collect_garbage(self.survivor.pid)
        found: dict[str, list[Held]] = {"executor": [], "agent": []}

        def sample() -> None:
            for who, pid in self.pids().items():
                now = measure.held(pid)
                assert now is not None, f"the {who} should live, but it has ended"
                found[who].append(now)

        self.campaign.run(1.0 * count, sample=sample)
        return {who: measure.median(samples) for who, samples in found.items()}

    def sample(self) -> None:
        """Append one line to the trace."""
        now = {who: measure.held(pid) for who, pid in self.pids().items()}
        assert all(now.values()), f"a process should live, but it has ended: {now}"
        at_s = round(time.monotonic() - self.began, 1)
        self.trace.append(
            {"s": at_s, **{who: asdict(h) for who, h in now.items() if h is not None}}
        )

    def hurt(self, fault: str) -> None:
        """Do one fault of `STEADY_FAULTS`."""
        campaign = self.campaign
        others = [e for e in campaign.cluster.executors() if e.pid != self.survivor.pid and e.agent]
        if fault.startswith("other"):
            if others:
                campaign.hurt(fault.removeprefix("other "), others[0])
        elif fault == "queries restarted":
            campaign.restart_queries()
        else:
            campaign.hurt(fault, self.survivor)

    def run(self, seconds: float, fault_s: float) -> None:
        end = time.monotonic() + seconds
        turn = 0
        while (left := end - time.monotonic()) > 0:
            self.campaign.run(min(left, fault_s), sample=self.sample)
            if end - time.monotonic() > fault_s / 2:
                self.hurt(STEADY_FAULTS[turn % len(STEADY_FAULTS)])
                turn += 1


def differences(campaign: Campaign) -> dict[str, dict[str, Any]]:
    """Compare the rows of each query with the batch computation's rows."""
    found = {}
    for name, expected in campaign.expected().items():
        written = campaign.results(name)
        missing, surplus = expected - written, written - expected
        found[name] = {
            "rows": written.total(),
            "expected": expected.total(),
            "missing": missing.total(),
            "unexpected": surplus.total(),
            "samples": [str(row) for row in [*_first(missing), *_first(surplus)]],
        }
    return found


def _first(rows: Counter[Row]) -> list[Row]:
    return list(rows)[:3]


def soak(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run the soak. Return its result. `wrong` lists the faults in words."""
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begun:6.1f} s] {text}", file=sys.stderr, flush=True)

    with Cluster(work / "cluster", memory_mb=1024) as cluster:
        campaign = Campaign(
            cluster,
            work,
            seed=options.seed,
            feed_s=0.5 if options.short else 1.5,
            pause_s=(0.5, 2.0) if options.short else (1.0, 9.0),
            say=say,
        )
        campaign.feed()
        campaign.launch()
        say("the queries run")
        if options.short:
            faults = list(SHORT_FAULTS)
            while faults:
                campaign.run(2.0, fault_s=1.5, faults=faults)
        else:
            campaign.run(options.minutes * 60 * CHAOS_SHARE, fault_s=12.0)
            # In this time the last victim comes back, opens its stores, and compiles its code.
            campaign.run(60.0)
        steady = Steady(campaign)
        if not options.short:
            campaign.restart_queries()
            campaign.run(30.0)
        say(f"from here on executor {steady.survivor.id} is measured")
        before = steady.measure(2 if options.short else 12)
        processes_before = roles(cluster)
        files_before = measure.folder_size(campaign.home / "checkpoints")
        if options.short:
            campaign.run(2.0)
        else:
            steady.run(options.minutes * 60 * (1 - CHAOS_SHARE), fault_s=15.0)
            # After this time no process is paused or missing.
            campaign.run(30.0)
        after = steady.measure(2 if options.short else 12)
        processes_after = roles(cluster)
        files_after = measure.folder_size(campaign.home / "checkpoints")
        if options.short:
            campaign.hurt("driver killed")
        say("the last life of the driver runs to the end of the input")
        campaign.finish()
        left_local = sorted(str(path) for path in cluster.local.glob("**/millpond-*"))
        left_local += sorted(str(path) for path in cluster.scratch.glob("*rocksdbjni*"))
        left = [
            p.command for p in cluster.processes() if p.pid not in {d.pid for d in cluster.daemons}
        ]
        lives = campaign.tally.lives
    verified = {
        name: verify(campaign.home / "checkpoints" / name, work, cluster.tag) for name in QUERIES
    }
    wrong = list(campaign.tally.failures)
    compared = differences(campaign)
    wrong += [
        f"{name}: rows differ: {c}"
        for name, c in compared.items()
        if c["missing"] or c["unexpected"]
    ]
    wrong += [f"{name}: no rows" for name, c in compared.items() if not c["rows"]]
    wrong += [f"{name}: {problem}" for name, v in verified.items() for problem in v.problems]
    if not options.short:  # a short run ends before anything is warm
        wrong += measure.leaks("executor", before["executor"], after["executor"], EXECUTOR_BOUNDS)
        wrong += measure.leaks("agent", before["agent"], after["agent"], AGENT_BOUNDS)
    most = LOCAL_FILES_PER_STORE * STORES
    if after["executor"].local_files > most:
        wrong.append(
            f"executor: {after['executor'].local_files} files of local RocksDBs are open, more than"
            f" {most}"
        )
    wrong += [f"left running: {command}" for command in left]
    wrong += [f"left on the local disk: {path}" for path in left_local]
    return {
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "seed": options.seed,
        "short": options.short,
        "commit": commit(),
        "host": (
            f"{platform.machine()}, {platform.system()} {platform.release()}, Python"
            f" {platform.python_version()}"
        ),
        "files": campaign.tally.files,
        "rows_in": campaign.tally.files * 300,
        "driver_lives": lives,
        "faults": dict(sorted(campaign.tally.faults.items())),
        "queries": {name: compared[name] | {"checked": asdict(verified[name])} for name in QUERIES},
        "bounds": {"executor": EXECUTOR_BOUNDS, "agent": AGENT_BOUNDS},
        "garbage_collected": shutil.which("jcmd") is not None,
        "before": {who: asdict(held) for who, held in before.items()},
        "after": {who: asdict(held) for who, held in after.items()},
        "processes_before": processes_before,
        "processes_after": processes_after,
        "checkpoint_files_and_bytes_before": files_before,
        "checkpoint_files_and_bytes_after": files_after,
        "trace": steady.trace[:: max(1, len(steady.trace) // MAX_SAMPLES)],
        "wrong": wrong,
    }


def roles(cluster: Cluster) -> dict[str, int]:
    """Return the number of processes of each kind."""
    kinds = {
        "master": "deploy.master.Master",
        "worker": "deploy.worker.Worker",
        "executor": "CoarseGrainedExecutorBackend",
        "driver": "deploy.SparkSubmit",
        "agent": "millpond.agent",
        "python worker": "pyspark.daemon",
    }
    found = Counter(
        next((kind for kind, mark in kinds.items() if mark in process.command), "other")
        for process in cluster.processes()
    )
    return dict(sorted(found.items()))


def commit() -> str:
    """Return the tested commit, with a + if files changed since."""
    repository = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)  # a shell may have made background jobs ignore it
    work = options.work or Path(tempfile.mkdtemp(prefix="millpond-soak-"))
    try:
        result = soak(options, work)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    text = json.dumps(result, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    print(
        text
        if not options.out
        else json.dumps({k: v for k, v in result.items() if k != "trace"}, indent=2)
    )
    for line in result["wrong"]:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if result["wrong"] else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
