"""What the machines of `test_ttl_machine` and `test_ttl_join_machine` share: they play random
batches on stores whose rows end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.depth import deep
from integration.provider import Timed
from integration.ttl_model import Aged, K, V

START_MS = 1_900_000_000_123
# How much time passes before a batch, also on a clock that is set back; and its time to live.
TIMES: dict[str, st.SearchStrategy[Any]] = {
    "passes_ms": st.sampled_from([0, 1, 400, 1000, 3000, 11_000, 20_000, 130_000, -2000, -50_000]),
    "ttl_ms": st.sampled_from([10_000, 10_000, 10_000, 1000, 200_000, None]),
}

in_each_tier = pytest.mark.parametrize(
    "conf",
    [
        # below some batches, so that rows leave memory
        {"millpond.memory.budget": "64k", "millpond.restore.warmUp": False},
        deep({}),
        deep({"millpond.backend": "heap"}),
    ],
    ids=["small-memory", "default", "heap"],
)


class Begun(NamedTuple, Generic[K, V]):
    """A batch that has begun.

    Attributes:
        version: it begins on this one.
        model: the rows as it finds them.
        timed: None: its rows do not end.
        ended: how many rows ended when it began.
    """

    version: int
    model: Aged[K, V]
    timed: Timed | None
    ended: int


class Versions(Generic[K, V]):
    """The model of each version, and the time of the batches."""

    def __init__(self) -> None:
        self.models: list[Aged[K, V]] = [Aged()]
        self.now_ms = START_MS

    def begin(self, batch: dict[str, Any]) -> Begun[K, V]:
        """Begin a batch, at its time."""
        self.now_ms += batch["passes_ms"]
        timed = None if batch["ttl_ms"] is None else Timed(self.now_ms, batch["ttl_ms"])
        if batch["ends"] == "again" and len(self.models) > 1:
            self.models.pop()  # Spark did not record the last commits, and repeats their batch
        model = self.models[-1].copy()
        return Begun(len(self.models) - 1, model, timed, model.begin(timed))


class Machine(Protocol):
    """Stores over their versions, and the model of each."""

    def run(self, batch: dict[str, Any]) -> None:
        """Run one batch, and compare it with the model."""

    def close(self) -> None:
        """Close the stores."""


def batches_of(batch: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return histories of batches, each at its time."""
    return st.lists(st.fixed_dictionaries({**TIMES, **batch}), min_size=2, max_size=14)


def play(
    make: Callable[[Path], Machine],
    batches: st.SearchStrategy[list[dict[str, Any]]],
    work: Path,
    *,
    examples: int,
    at_end: Callable[[Any], None] = lambda machine: None,
) -> None:
    """Play histories, each on a machine of its own.

    Args:
        make: a machine over a Spark checkpoint.
        work: the folder of the Spark checkpoints.
        at_end: what is checked of a machine after its last batch.
    """

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(history=batches)
    def one(history: list[dict[str, Any]]) -> None:
        machine = make(Path(tempfile.mkdtemp(dir=work)) / "checkpoint")
        try:
            for batch in history:
                machine.run(batch)
            at_end(machine)
        finally:
            machine.close()

    one()
