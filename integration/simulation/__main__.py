"""Run seeds of the simulation. Print those that fail, and how to run each again.

docs/design/0008-simulation.md describes the simulation.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from integration.jvm import millpond_jar
from integration.simulation.jvm import compile_simulation
from integration.simulation.simulator import HANG, Outcome, Schedule, Simulator


def _report(schedule: Schedule, outcome: Outcome, shrunk: Schedule | None) -> str:
    # what the threads of a JVM do is long
    details = outcome.details if outcome.symptom == HANG else outcome.details[:3000]
    lines = [f"seed {schedule.seed} failed: {details.rstrip()}"]
    lines.append(
        f"to run it again: make simulate SEEDS=1 FIRST={schedule.seed} SIMULATE_ARGS=--trace"
    )
    if shrunk is not None:
        what = "a schedule" if outcome.symptom == HANG else "the shortest schedule found"
        lines.append(f"{what} that fails so (for --replay):\n{shrunk.to_json().rstrip()}")
    return "\n".join(lines)


def carried_out(
    simulator: Simulator, schedule: Schedule, *, shrink: bool
) -> tuple[str | None, str]:
    """Run a schedule. Return its symptom, or None, and what to print of it.

    A hang is not shrunk: each shorter schedule would stand for minutes.
    """
    outcome = simulator.run(schedule)
    if outcome.symptom is None:
        return None, ""
    print(f"seed {schedule.seed} failed: {outcome.symptom}", file=sys.stderr, flush=True)
    shrunk = None
    if outcome.symptom == HANG:
        shrunk = replace(schedule, given=dict(outcome.made))
    elif shrink:
        shrunk = simulator.shrink(schedule, outcome)
    return outcome.symptom, _report(schedule, outcome, shrunk)


def work(first: int, count: int, stride: int, shrink: bool) -> None:
    """Run every `stride`-th seed in this process, and print one line of JSON for each."""
    simulator = Simulator()
    try:
        for seed in range(first, first + count, stride):
            symptom, report = carried_out(simulator, Schedule.of_seed(seed), shrink=shrink)
            print(json.dumps([seed, symptom, report]), flush=True)
    finally:
        simulator.close()


def run_seeds(
    first: int, count: int, *, processes: int, shrink: bool, most: int
) -> tuple[int, Counter[str]]:
    """Run seeds side by side. Stop after `most` failures.

    Return how many seeds passed, and the symptoms of the others.
    """
    jar = millpond_jar()
    assert jar is not None
    compile_simulation(jar)  # before the processes start: two must not compile at once
    command = [sys.executable, "-m", "integration.simulation", *([] if shrink else ["--no-shrink"])]
    workers = [
        subprocess.Popen(
            [
                *command,
                "--first",
                str(first + n),
                "--seeds",
                str(count - n),
                "--stride",
                str(processes),
            ],
            stdout=subprocess.PIPE,
        )
        for n in range(processes)
    ]
    lines: queue.Queue[bytes] = queue.Queue()

    def read(worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        lines.put(b"")

    for worker in workers:
        threading.Thread(target=read, args=(worker,), daemon=True).start()
    passed, working, symptoms = 0, processes, Counter[str]()
    while working and symptoms.total() < most:
        line = lines.get()
        if not line:
            working -= 1
            continue
        _, symptom, report = json.loads(line)
        if symptom is None:
            passed += 1
        else:
            symptoms[symptom] += 1
            print(report, flush=True)
        if (passed + symptoms.total()) % 500 == 0:
            print(
                f"{passed + symptoms.total()} seeds, {symptoms.total()} failed",
                file=sys.stderr,
                flush=True,
            )
    for worker in workers:
        worker.terminate()
        worker.wait()
    if not working and passed + symptoms.total() < count:
        symptoms["a process ended too early"] += count - passed - symptoms.total()
    return passed, symptoms


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, default=10, help="stop after so many failures")
    parser.add_argument(
        "--no-shrink", action="store_true", help="do not look for shorter schedules"
    )
    parser.add_argument(
        "--trace", action="store_true", help="print all that happens in each seed, in one process"
    )
    parser.add_argument(
        "--replay", type=Path, help="run a schedule from a file, and print all that happens"
    )
    parser.add_argument("--stride", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so `finally` blocks clean up
    if options.stride:
        work(options.first, options.seeds, options.stride, not options.no_shrink)
        return 0
    started = time.monotonic()
    if options.trace or options.replay:
        passed, symptoms = 0, Counter[str]()
        simulator = Simulator()
        try:
            schedules = (
                [Schedule.from_json(options.replay.read_text())]
                if options.replay
                else [
                    Schedule.of_seed(seed)
                    for seed in range(options.first, options.first + options.seeds)
                ]
            )
            for schedule in schedules:
                outcome = simulator.run(schedule)
                print(schedule.setting, *outcome.trace, sep="\n")
                if outcome.symptom is None:
                    passed += 1
                else:
                    symptoms[outcome.symptom] += 1
                    print(_report(schedule, outcome, None))
        finally:
            simulator.close()
    else:
        passed, symptoms = run_seeds(
            options.first,
            options.seeds,
            processes=min(options.processes, options.seeds),
            shrink=not options.no_shrink,
            most=options.most,
        )
    for symptom, count in symptoms.most_common():
        print(f"{count} times: {symptom}")
    print(f"{time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {symptoms.total()} failed")
    return 1 if symptoms else 0


if __name__ == "__main__":
    sys.exit(main())
