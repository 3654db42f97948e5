"""An agent, and providers that speak to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.service import AgentService
from tests.agent_driver import Provider

MakeProvider = Callable[..., Provider]


@pytest.fixture
def service() -> AgentService:
    return AgentService()


@pytest.fixture
def make(service: AgentService, tmp_path: Path) -> MakeProvider:
    counter = iter(range(1000))

    def provider(**arguments: Any) -> Provider:
        return Provider(
            service, tmp_path / "ckpt", tmp_path / f"local-{next(counter)}", **arguments
        )

    return provider
