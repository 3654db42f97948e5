"""Runs schedules in a JVM, one after the other, and shrinks those that fail."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from integration.harness import ProviderError
from integration.simulation.choices import Choices, Key
from integration.simulation.commands import opening
from integration.simulation.director import Wrong
from integration.simulation.families import MOST_PARTITIONS, Shape, shapes
from integration.simulation.jvm import Hang, Jvm
from integration.simulation.query import Step
from integration.simulation.runner import run
from integration.simulation.schedule import setting_of, steps_of
from integration.simulation.setting import Setting
from integration.simulation.world import World

T = TypeVar("T")

HANG = "hang"  # the symptom of a JVM that stands


@dataclass(frozen=True)
class Schedule:
    """Everything that decides a run. `given`: its decisions; None: draw them from the seed."""

    seed: int
    setting: Setting
    steps: tuple[Step, ...]
    given: dict[Key, int] | None = None

    @staticmethod
    def of_seed(seed: int) -> Schedule:
        return Schedule(seed, setting_of(seed), tuple(steps_of(seed)))

    def to_json(self) -> str:
        """Return the text for a file. `from_json` reads it."""
        given = (
            None
            if self.given is None
            else [[*key, value] for key, value in sorted(self.given.items())]
        )
        steps = ",\n  ".join(json.dumps(step) for step in self.steps)
        head = f'"seed": {self.seed},\n "setting": {json.dumps(asdict(self.setting))}'
        return f'{{{head},\n "choices": {json.dumps(given)},\n "steps": [\n  {steps}]}}\n'

    @staticmethod
    def from_json(text: str) -> Schedule:
        value = json.loads(text)
        given = None if value["choices"] is None else {(a, b): c for a, b, c in value["choices"]}
        return Schedule(value["seed"], Setting(**value["setting"]), tuple(value["steps"]), given)


@dataclass(frozen=True)
class Outcome:
    """The result of one run. `symptom` None: the run found nothing wrong."""

    symptom: str | None
    details: str
    trace: list[str]
    made: dict[Key, int] = field(default_factory=dict)


class Simulator:
    """One JVM that runs one schedule after the other."""

    def __init__(self, jar: Path | None = None) -> None:
        self._jar = jar
        self._jvm: Jvm | None = None
        self._shapes: dict[str, Shape] | None = None
        home = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.dir = Path(tempfile.mkdtemp(prefix="millpond-simulation-", dir=home))
        self._logger = logging.getLogger("millpond")
        self._usual_level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)  # faults are intended, so their warnings are noise

    def _ready(self) -> tuple[Jvm, dict[str, Shape]]:
        if self._jvm is None:
            self._jvm = Jvm(self.dir, self._jar)
        jvm = self._jvm
        if self._shapes is None:

            def partitions_of(keys: list[Any], schema: str) -> list[int]:
                answer = jvm.call(
                    lambda _: None,
                    "partition_of",
                    key=schema,
                    keys=keys,
                    partitions=MOST_PARTITIONS,
                )
                return [int(p) for p in answer]

            self._shapes = shapes(partitions_of)
        return jvm, self._shapes

    def run(self, schedule: Schedule) -> Outcome:
        """Run one schedule."""
        jvm, known = self._ready()
        often = (schedule.setting.switches, schedule.setting.local_faults)
        choices = Choices(schedule.seed, schedule.given, often)
        work_dir = Path(tempfile.mkdtemp(dir=self.dir, prefix=f"{schedule.seed}-"))
        shape = known[schedule.setting.shape]
        world: World | None = None
        try:
            with opening():
                world = World(jvm, schedule.setting, shape, choices, work_dir)
                run(world, shape, list(schedule.steps))
            return Outcome(None, "", world.trace, choices.made)
        except Exception as error:
            trace = [] if world is None else [*world.trace]
            if isinstance(error, Wrong):
                symptom, details = error.symptom, str(error)
            elif isinstance(error, Hang):
                what, _, rest = str(error).partition("\n")
                step = next((line for line in reversed(trace) if line.startswith("-- ")), "none")
                symptom, details = HANG, f"{what}\nin the step: {step}\n{rest}"
            else:
                symptom = f"{type(error).__name__}: {str(error)[:80]}"
                details = traceback.format_exc()
            self._clean(world)
            return Outcome(symptom, details, trace, choices.made)
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)

    def _clean(self, world: World | None) -> None:
        """Make the JVM fit for the next run, or end the JVM."""
        try:
            if world is None or not world.abandon():
                self.stop_jvm()
        except (Wrong, Hang, ProviderError, RuntimeError, OSError, KeyError, AssertionError):
            self.stop_jvm()

    def stop_jvm(self) -> None:
        """End the JVM. The next run starts another one."""
        if self._jvm is not None:
            self._jvm.stop()
            self._jvm = None

    def close(self) -> None:
        """End the JVM and delete all temporary files."""
        self.stop_jvm()
        self._logger.setLevel(self._usual_level)
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- shrinking

    def shrink(self, schedule: Schedule, outcome: Outcome, *, runs: int = 300) -> Schedule:
        """Return the shortest schedule found that fails with the same symptom.

        Takes at most `runs` runs, and ends with the first that hangs: each costs minutes.
        """
        best = replace(schedule, given=dict(outcome.made))
        left = runs

        def fails(candidate: Schedule) -> bool:
            nonlocal left
            left -= 1
            if left < 0:
                return False
            symptom = self.run(candidate).symptom
            if symptom == HANG:
                left = 0
            return symptom == outcome.symptom

        if not fails(best):
            return schedule  # the failure depends on something other than the decisions
        size = (10**9, 10**9)
        while (now := (len(best.steps), len(best.given or ()))) < size and left > 0:
            size = now
            best = _fewer_choices(best, fails)  # first, because a run without trouble is short
            best = _fewer_steps(best, fails)
            best = _less(best, fails)
        return best


def _fewer_steps(best: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    def with_steps(steps: Sequence[Step]) -> Schedule:
        kept = {step["id"] for step in steps} | {10**6, 10**6 + 1, 10**6 + 2}
        given = {key: value for key, value in (best.given or {}).items() if key[0] in kept}
        return replace(best, steps=tuple(steps), given=given)

    return with_steps(_minimal(best.steps, lambda steps: fails(with_steps(steps))))


def _fewer_choices(best: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    def with_choices(chosen: Sequence[tuple[Key, int]]) -> Schedule:
        return replace(best, given=dict(chosen))

    return with_choices(
        _minimal(sorted((best.given or {}).items()), lambda chosen: fails(with_choices(chosen)))
    )


def _less(best: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Reduce the operations of each batch. Set unusual settings to the usual value."""
    for index, step in enumerate(best.steps):
        for name, values in (("ops", (0, 1, 2, 4)), ("dies", (None,)), ("background", (False,))):
            for value in values:
                if (
                    name not in step
                    or step[name] == value
                    or (name == "ops" and step["ops"] <= value)
                ):
                    continue
                changed = {k: v for k, v in {**step, name: value}.items() if v is not None}
                candidate = replace(
                    best, steps=(*best.steps[:index], changed, *best.steps[index + 1 :])
                )
                if fails(candidate):
                    best, step = candidate, changed
                    break
    usual = asdict(Setting())
    for name, value in usual.items():
        if getattr(best.setting, name) != value:
            candidate = replace(best, setting=replace(best.setting, **{name: value}))
            if fails(candidate):
                best = candidate
    return best


def _minimal(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return a smallest part of the items that still fails, by delta debugging."""
    if items and fails([]):
        return []
    parts = 2
    while len(items) >= 1:
        length = max(1, -(-len(items) // parts))
        for start in range(0, len(items), length):
            rest = [*items[:start], *items[start + length :]]
            if fails(rest):
                items, parts = rest, max(2, parts - 1)
                break
        else:
            if length == 1:
                break
            parts = min(len(items), parts * 2)
    return items
