"""Random batches, snapshots, rescales, crashes in rescales, and collections.

A dict for each version is the model.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.rescale_machine import RescaleMachine, RescaleMachineWithIds


@pytest.mark.parametrize("machine", [RescaleMachine, RescaleMachineWithIds])
def test_a_lost_attempt_does_not_survive_a_rescale_that_hashes_anew(
    machine: type[RescaleMachine],
) -> None:
    # The attempt has the version that the rescale gives its batch, and the key groups before it.
    run = machine()
    run.begin(partitions=1)
    try:
        run.rescale(partitions=7)
        run.batch_is_gone_back_from(partitions={0, 5})
        run.rescale(partitions=24)
        run.every_retained_version_is_what_it_was()
        run.verify_finds_nothing()
    finally:
        run.teardown()


@pytest.mark.parametrize("machine", [RescaleMachine, RescaleMachineWithIds])
def test_a_removed_partition_of_which_a_changelog_is_still_needed_is_not_damaged(
    machine: type[RescaleMachine],
) -> None:
    # Version 2 has expired, and its snapshots are gone. Version 3 needs version 1 of partition 4.
    run = machine()
    run.begin(partitions=6)
    try:
        run.rescale(partitions=12)
        run.rescale(partitions=4)
        run.run_batch(deletes=set(), puts={0: b"a"})
        run.collect(days=False)
        assert run.exists("state/0/4") and not list(run.root.glob("state/0/4/2*"))
        run.every_retained_version_is_what_it_was()
        run.verify_finds_nothing()
    finally:
        run.teardown()


@pytest.mark.parametrize("machine", [RescaleMachine, RescaleMachineWithIds])
@pytest.mark.parametrize("steps", [(5, 1, 2), (5, 10, 2), (5, 1, 3)])
def test_a_rehash_of_which_a_later_rescale_made_snapshots_expires(
    machine: type[RescaleMachine], steps: tuple[int, ...]
) -> None:
    # Version 2 has expired. Version 4, or its pin, keeps changelogs of version 2 with all rows.
    run = machine()
    run.begin(partitions=1)
    try:
        for partitions in steps:
            run.rescale(partitions=partitions)
        run.run_batch(deletes=set(), puts={0: b"a"})
        run.collect(days=False)
        assert list(run.root.glob("state/0/0/2*")), "the case is what it says"
        run.every_retained_version_is_what_it_was()
        run.verify_finds_nothing()
    finally:
        run.teardown()


@pytest.mark.parametrize("machine", [RescaleMachine, RescaleMachineWithIds])
def test_a_damaged_manifest_of_a_removed_partition_goes_with_the_others(
    machine: type[RescaleMachine],
) -> None:
    # Nobody could tell what it names. So it stayed, and no sweep of the operator deleted anything.
    run = machine()
    run.begin(partitions=4)
    try:
        run.snapshot(3)
        run.run_batch(deletes=set(), puts={1: b"a", 3: b"b"})
        run.rescale(partitions=2)
        (damaged,) = run.root.glob("state/0/3/*.manifest")
        damaged.write_bytes(damaged.read_bytes()[:-1])
        for number in range(3):
            run.run_batch(deletes=set(), puts={1: b"c", 2: b"%d" % number})
            for partition in range(2):
                run.snapshot(partition)
        for _ in range(3):
            run.collect(days=True)
        assert not [path for path in run.root.glob("state/0/3/**/*") if path.is_file()]
        assert not list(run.root.glob("millpond/pins/*"))
        run.every_retained_version_is_what_it_was()
    finally:
        run.teardown()


class DeepRescaleMachine(RescaleMachine):
    """The same, with more examples."""


class DeepRescaleMachineWithIds(RescaleMachineWithIds):
    """The same, with more examples."""


def _settings(max_examples: int) -> settings:
    return settings(max_examples=max_examples, stateful_step_count=14, deadline=None)


TestRescaleMachine = RescaleMachine.TestCase
TestRescaleMachine.settings = _settings(5)
TestRescaleMachineWithIds = RescaleMachineWithIds.TestCase
TestRescaleMachineWithIds.settings = _settings(5)
TestMoreOfRescaleMachine = pytest.mark.deep(DeepRescaleMachine.TestCase)
TestMoreOfRescaleMachine.settings = _settings(12)
TestMoreOfRescaleMachineWithIds = pytest.mark.deep(DeepRescaleMachineWithIds.TestCase)
TestMoreOfRescaleMachineWithIds.settings = _settings(12)
