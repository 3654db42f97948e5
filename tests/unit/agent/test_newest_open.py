"""A load of a store ends when its provider has begun another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.agent.newest_open import NewestOpen
from millpond.errors import ErrorKind
from millpond.testing.faults import Operation
from tests.agent_driver import CallError
from tests.objects import Objects


def test_a_load_ends_when_the_provider_has_begun_another(tmp_path: Path) -> None:
    """The first one plans, as for a follower, while a task takes the store over."""
    objects = Objects(tmp_path)
    writer = objects.provider()
    writer.open(0)
    for _ in range(3):
        writer.commit()
    writer.snapshot()
    at = writer.commit()
    planning, go_on = threading.Event(), threading.Event()

    def stands_still(operation: Operation) -> None:
        if operation.key.endswith(".manifest") and not planning.is_set():
            planning.set()
            assert go_on.wait(30)

    reader = objects.provider()
    first_error: list[ErrorKind] = []

    def load_first() -> None:
        with pytest.raises(CallError) as caught:
            reader.open(at.version, at.id)
        first_error.append(caught.value.kind)

    objects.fault = stands_still
    first = threading.Thread(target=load_first)
    first.start()
    assert planning.wait(30)
    first_dir = reader.generation_dir
    asked = threading.Event()
    note = NewestOpen.asked

    second_state: list[tuple[str, ...]] = []

    def load_second() -> None:
        second_state.append(reader.open(at.version, at.id))

    with pytest.MonkeyPatch.context() as patch:

        def noted(self: NewestOpen, local_dir: str, generation: int) -> Callable[[], None]:
            check = note(self, local_dir, generation)
            asked.set()
            return check

        patch.setattr(NewestOpen, "asked", noted)
        second = threading.Thread(target=load_second)
        second.start()
        assert asked.wait(30)
    go_on.set()
    first.join(30)
    second.join(30)
    assert first_error == [ErrorKind.STORE_CLOSED]
    assert list(first_dir.glob("db-*")) == [], "it fetched a snapshot that nobody wants"
    assert second_state == [writer.state]
