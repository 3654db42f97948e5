"""The simulation of the whole store.

The tests run seeds for CI, run schedules that once failed, and check the simulation itself.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.depth import deep, quick_first
from integration.simulation.__main__ import carried_out, run_seeds
from integration.simulation.jvm import Jvm, Message
from integration.simulation.schedule import ERASING
from integration.simulation.simulator import Outcome, Schedule, Simulator

# The first seed, and the number of seeds. `make simulate` runs others.
SEEDS = [(1, 3), (4, 297)]
# With these, users erase keys beside the query. The first few need no JVM of their own.
ERASING_SEEDS = [(ERASING + 4, 296)]
_REPLAYED = [ERASING + 1, *random.Random(0).sample(range(1, 10_000), 8)]
CORPUS = sorted((Path(__file__).parent / "simulation" / "corpus").glob("*.json"))


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    found = Simulator()
    yield found
    found.close()


@pytest.mark.parametrize(("first", "seeds"), [*quick_first(SEEDS), *map(deep, ERASING_SEEDS)])
def test_seeds_show_no_wrong_row(first: int, seeds: int) -> None:
    """In any order of events, every read returns the committed rows."""
    passed, symptoms = run_seeds(first, seeds, processes=2, shrink=True, most=3)
    assert not symptoms
    assert passed == seeds


def test_erasures_show_no_wrong_row(simulator: Simulator) -> None:
    """A few of the seeds with which users erase keys."""
    for seed in range(ERASING, ERASING + 4):
        outcome = simulator.run(Schedule.of_seed(seed))
        assert outcome.symptom is None, (seed, outcome.details)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_failed_once_does_not_again(simulator: Simulator, path: Path) -> None:
    """Each of these schedules showed a defect once."""
    outcome = simulator.run(Schedule.from_json(path.read_text()))
    assert outcome.symptom is None, outcome.details


@pytest.mark.parametrize("seeds", quick_first([_REPLAYED[:2], _REPLAYED[2:]]), ids=["few", "more"])
def test_a_replay_is_exact(simulator: Simulator, seeds: list[int]) -> None:
    """A seed always gives the same run. So do its schedule and decisions alone."""
    for seed in seeds:
        schedule = Schedule.of_seed(seed)
        first = simulator.run(schedule)
        assert simulator.run(schedule) == first, seed
        given = Schedule(seed, schedule.setting, schedule.steps, first.made)
        assert simulator.run(Schedule.from_json(given.to_json())) == first, seed


@pytest.mark.deep
def test_a_run_with_a_thousand_open_files_is_as_another(simulator: Simulator) -> None:
    """Other tests of this process may leave many open. `select` fails beyond 1,024."""
    schedule = Schedule.of_seed(1)
    expected = simulator.run(schedule)
    with contextlib.ExitStack() as opened:
        for _ in range(1100):
            opened.enter_context(Path(os.devnull).open())
        another = Simulator()
        opened.callback(another.close)
        assert another.run(schedule) == expected


class Deaf(Jvm):
    """A JVM that does not hear one answer of the driver: both wait from then on."""

    sent = 0
    asked_for_threads = 0

    def threads(self) -> str:
        Deaf.asked_for_threads += 1
        return super().threads()

    def _send(self, message: Message) -> None:
        self.sent += 1
        if self.sent == 60:
            self.silence_s = 0.5
        else:
            super()._send(message)


class Counting(Simulator):
    """A simulator whose first JVM is deaf. It counts its runs."""

    runs = 0

    def run(self, schedule: Schedule) -> Outcome:
        self.runs += 1
        if self._jvm is None and self.runs == 1:
            self._jvm = Deaf(self.dir, self._jar)
        return super().run(schedule)


@pytest.mark.deep
def test_a_jvm_that_stands_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """With the seed, the step, what was asked, the JVM's threads, and a schedule to replay."""
    simulator = Counting()
    try:
        symptom, report = carried_out(simulator, Schedule.of_seed(7), shrink=True)
    finally:
        simulator.close()
    assert symptom == "hang"
    assert simulator.runs == 1, "each shorter schedule would stand as long"
    assert Deaf.asked_for_threads == 1, "somebody waited for this JVM again"
    assert report.startswith("seed 7 failed: the JVM said nothing for")
    assert "in the step: -- do=" in report and "it was asked for: {" in report
    assert '"main"' in report and "java.lang.Thread.State" in report
    schedule = Schedule.from_json(report[report.index('{"seed"') :])
    assert schedule.steps == Schedule.of_seed(7).steps and schedule.given
    assert capsys.readouterr().err == "seed 7 failed: hang\n"


class HangsWhenShorter(Simulator):
    """A simulator that finds a row wrong, and hangs with any shorter schedule."""

    runs = 0

    def run(self, schedule: Schedule) -> Outcome:
        self.runs += 1
        is_whole = schedule.steps == Schedule.of_seed(schedule.seed).steps and self.runs < 3
        return Outcome("wrong" if is_whole else "hang", "", [], {(1, 1): 1})


@pytest.mark.deep
def test_the_search_for_a_shorter_schedule_ends_with_the_first_that_hangs() -> None:
    simulator = HangsWhenShorter()
    try:
        schedule = Schedule.of_seed(7)
        shrunk = simulator.shrink(schedule, simulator.run(schedule))
    finally:
        simulator.close()
    assert shrunk.steps == schedule.steps
    assert simulator.runs == 3


class Planted(Simulator):
    """A simulator that fails if a kill of an executor follows a snapshot."""

    def run(self, schedule: Schedule) -> Outcome:
        outcome = super().run(schedule)
        assert outcome.symptom is None, outcome.details
        snapshots = [i for i, line in enumerate(outcome.trace) if line == "publish_snapshot"]
        kills = [i for i, line in enumerate(outcome.trace) if line.endswith("is killed")]
        failed = bool(snapshots and kills and snapshots[0] < kills[-1])
        return Outcome("planted" if failed else None, "", outcome.trace, outcome.made)


@pytest.mark.deep
def test_a_failure_is_cut_down_to_what_it_needs() -> None:
    """Shrinking leaves a batch, a batch that proves it, a snapshot and a kill, and no more."""
    simulator = Planted()
    try:
        schedules = [
            s
            for seed in range(1, 200)
            if len((s := Schedule.of_seed(seed)).steps) > 12 and s.setting.partitions == 1
        ]
        schedule, outcome = next((s, o) for s in schedules if (o := simulator.run(s)).symptom)
        shrunk = simulator.shrink(schedule, outcome)
        assert simulator.run(shrunk).symptom == "planted"
    finally:
        simulator.close()
    assert len(shrunk.steps) <= 5
    assert len(shrunk.given or {}) <= 4 < len(outcome.made)
