"""Reads every byte of a Spark checkpoint back, and says all that is wrong with it.

`logs` checks Spark's logs, format.json and the list of stores. `store_check` reads
one store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from millpond.operations.inspect.logs import Problem, problems_of_claim, problems_of_logs
from millpond.operations.inspect.store_check import Checked, verify_store
from millpond.query.survey import Survey, survey
from millpond.query.whole import UNFINISHED, newest_whole_batch
from millpond.storage import Storage

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """All problems, and what was read.

    `to_json` is the contract of `millpond checkpoint verify --json`.
    """

    checkpoint: str
    checked: Checked = field(default_factory=Checked)
    problems: list[Problem] = field(default_factory=list)
    # None: none is whole, or nothing is damaged, or a command is half way.
    newest_whole_batch: int | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def unfinished(self) -> bool:
        """Whether a command is half way. What is whole shows once it has ended."""
        return any(problem.kind in UNFINISHED for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoint": self.checkpoint,
            "ok": self.ok,
            "checked": asdict(self.checked),
            "problems": [asdict(problem) for problem in self.problems],
            "newest_whole_batch": self.newest_whole_batch,
        }


def verify(
    storage: Storage, checkpoint: str, progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """Read everything back. A query may run meanwhile. This needs temporary space if SSTs cannot be
    linked.

    Args:
        checkpoint: its name, for display.
        progress: called after each store with how many are read, and how many there are.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT. UnsupportedError: FOREIGN_CHECKPOINT, or rocksdict is
            not installed.
        UnavailableError: storage or local disk.
    """
    found, of_logs = verify_logs(storage, checkpoint)
    problems = [*problems_of_claim(storage), *of_logs]
    checked = Checked()
    ssts: dict[str, int] = {}  # size in bytes by key
    for done, store in enumerate(found.stores, 1):
        part = verify_store(storage, found, store)
        checked += part.checked
        ssts |= part.ssts
        problems += part.problems
        if progress is not None:
            progress(done, len(found.stores))
    report = VerifyReport(checkpoint, checked.with_ssts(ssts), problems)
    if report.ok or report.unfinished:
        return report
    damaged = {problem.file for problem in problems}
    return replace(report, newest_whole_batch=newest_whole_batch(storage, checkpoint, damaged))


def verify_logs(storage: Storage, checkpoint: str) -> tuple[Survey, list[Problem]]:
    """Return what is there, and the problems that show without the stores' files. As `verify`."""
    for attempt in range(_ATTEMPTS):
        found = survey(storage, checkpoint)
        # The logs of a running query may change meanwhile.
        if not found.lost or attempt == _ATTEMPTS - 1:
            break
    return found, list(problems_of_logs(storage, found))
