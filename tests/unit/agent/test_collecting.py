"""When the agent collects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.agent import collecting
from millpond.model.ids import VersionId
from tests.agent_driver import Provider


def test_a_store_that_is_closed_and_opened_waits_for_its_next_collection(
    make: Callable[..., Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark's `unloadOnCommit` each batch closes the store: each collected and swept."""
    done: list[str] = []

    def counted(name: str) -> None:
        work: Callable[..., Any] = getattr(collecting, name)

        def count(*arguments: Any) -> Any:
            done.append(name)
            return work(*arguments)

        monkeypatch.setattr(collecting, name, count)

    for name in ("_expire", "_sweep", "_drop_unfinished"):
        counted(name)
    for version in range(3):
        provider = make(options={"gc.intervalMs": "3600000"})
        provider.open(version)
        provider.commit()
        provider.collect(VersionId(version), force=False)
        provider.call("close")
    assert done == ["_expire", "_sweep", "_drop_unfinished"]
    another = make(options={"gc.intervalMs": "3600000"}, run_id="another")
    another.open(3)
    another.collect(VersionId(3), force=False)
    assert done == 2 * ["_expire", "_sweep", "_drop_unfinished"]
