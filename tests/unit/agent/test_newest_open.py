"""A load of a store ends when its provider has begun another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.agent.newest_open import NewestOpen
from millpond.errors import ErrorKind
from millpond.model.ids import VersionId
from millpond.testing.faults import Operation
from tests.agent_driver import CallError, Ids, Provider
from tests.objects import Objects


def overtake(
    objects: Objects,
    reader: Provider,
    at: VersionId,
    stands_still: Callable[[Operation], bool],
    *,
    listed: bool = False,
) -> tuple[Path, Ids]:
    """Begin a load. Where it stands still, begin another one, and let both end.

    Returns: the folder of the first load; the state that the second one found.
    """
    standing, go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if not standing.is_set() and stands_still(operation):
            standing.set()
            assert go_on.wait(30)

    first_error: list[ErrorKind] = []

    def load_first() -> None:
        with pytest.raises(CallError) as caught:
            reader.open(at.version, at.id, listed=listed)
        first_error.append(caught.value.kind)

    objects.fault = hold
    first = threading.Thread(target=load_first)
    first.start()
    assert standing.wait(30)
    first_dir = reader.generation_dir
    asked = threading.Event()
    note = NewestOpen.asked

    second_state: list[Ids] = []

    def load_second() -> None:
        second_state.append(reader.open(at.version, at.id, listed=listed))

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
    return first_dir, second_state[0]


def test_a_load_ends_when_the_provider_has_begun_another(tmp_path: Path) -> None:
    """The first one plans, as for a follower, while a task takes the store over."""
    objects = Objects(tmp_path)
    writer = objects.provider()
    writer.open(0)
    for _ in range(3):
        writer.commit()
    writer.snapshot()
    at = writer.commit()
    first_dir, state = overtake(
        objects, objects.provider(), at, lambda operation: operation.key.endswith(".manifest")
    )
    assert list(first_dir.glob("db-*")) == [], "it fetched a snapshot that nobody wants"
    assert state == writer.state


@pytest.mark.parametrize(
    ("listed", "fetched"),
    # The header of the last changelog names the others, and they come side by side.
    [(False, 1), (True, 2)],
    ids=["by-name", "listed"],
)
def test_a_load_that_is_not_wanted_fetches_no_more_changelogs(
    tmp_path: Path, listed: bool, fetched: int
) -> None:
    """It kept the lock of the store until it had them all, and the other one fetched them again."""
    objects = Objects(tmp_path)
    writer = objects.provider()
    writer.open(0)
    ids = [writer.commit() for _ in range(5)]
    fetches = 0

    def is_fetch(operation: Operation) -> bool:
        nonlocal fetches
        if operation.name == "get_to_file" and operation.key.endswith(".changelog"):
            fetches += 1
        return fetches == fetched

    reader = objects.provider()
    before = objects.storage.counts["get_to_file"]
    _, state = overtake(objects, reader, ids[-1], is_fetch, listed=listed)
    assert state == writer.state
    assert objects.storage.counts["get_to_file"] - before == fetched + 5
