"""Providers that collect by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.service import AgentService
from tests.agent_driver import Provider
from tests.unit.store.histories import Clock

MakeProvider = Callable[..., Provider]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock, tmp_path: Path) -> MakeProvider:
    counter = iter(range(1000))
    service = AgentService(clock_ms=clock)

    def provider(*, grace_ms: int = 0, interval_ms: int = 0, **arguments: Any) -> Provider:
        options = {
            "gc.graceMs": str(grace_ms),
            "gc.intervalMs": str(interval_ms),
            "commit.fsync": "false",
        }
        options |= arguments.pop("options", {})
        return Provider(
            service,
            tmp_path / "ckpt",
            tmp_path / f"local-{next(counter)}",
            options=options,
            **arguments,
        )

    return provider
