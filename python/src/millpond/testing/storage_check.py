"""Try a storage of the user's: what Millpond does with it, step by step, then the contract.

The steps need nothing. The contract needs pytest, and is left out where that is not installed.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from millpond.storage import LocalStorage, Storage, open_storage, root_of
from millpond.storage.local import remove_empty_directories
from millpond.storage.steps import Step, run_steps


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One test of the contract. `message`: the last line of what went wrong, "" if nothing did."""

    name: str
    ok: bool
    seconds: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageReport:
    """What `check_storage` found. `to_json` is the contract of `millpond storage check --json`."""

    storage: str
    steps: tuple[Step, ...]  # up to the first that fails
    contract: tuple[CheckResult, ...]
    skipped: str  # why the contract was not run; "" if it was

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        steps = all(step.error is None for step in self.steps)
        return steps and all(result.ok for result in self.contract)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "storage": self.storage,
            "steps": [_step_json(step) for step in self.steps],
            "contract": [
                {"name": result.name, "ok": result.ok, "message": result.message}
                for result in self.contract
            ],
            "skipped": self.skipped,
        }


def check_storage(uri: str | os.PathLike[str], *, quick: bool = False) -> StorageReport:
    """Try everything that Millpond does with a storage, below a prefix of its own.

    Args:
        uri: where state would go.
        quick: leave out the contract.
    Raises: as `open_storage`, and where what was written cannot be removed.
    """
    root = root_of(uri).rstrip("/")
    place = f"{root}/.millpond-check-{uuid.uuid4().hex[:12]}"

    def make(name: str) -> Storage:
        return open_storage(f"{place}/{name}")

    contract: list[CheckResult] = []
    skipped = ""
    whole = open_storage(place)
    made = _first_missing(whole.root) if isinstance(whole, LocalStorage) else None
    steps = run_steps(make("steps"))
    try:
        if any(step.error is not None for step in steps):
            skipped = "the steps above failed"
        elif quick:
            skipped = "left out by --quick"
        elif find_spec("pytest") is None:
            skipped = "pytest is not installed: pip install pytest"
        else:
            from millpond.testing.check import run_contract  # it needs pytest

            contract = run_contract(make)
    finally:
        if len(steps) > 1:  # the first step writes nothing
            whole.delete([info.key for info in whole.list("")])
            if made is not None:
                remove_empty_directories(made)
    return StorageReport(
        storage=root, steps=tuple(steps), contract=tuple(contract), skipped=skipped
    )


def _first_missing(path: str) -> str:
    """Return the outermost directory that must be made for `path`, which is not there."""
    while not os.path.lexists(os.path.dirname(path)):
        path = os.path.dirname(path)
    return path


def _step_json(step: Step) -> dict[str, object]:
    error = None
    if step.error is not None:
        error = {"kind": step.error.kind.value, "message": str(step.error)}
    return {"name": step.name, "ms": round(step.ms, 1), "error": error}
