"""The call `open`: key groups, and the number of partitions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.agent.service import AgentService
from millpond.errors import ErrorKind
from millpond.format import layout
from millpond.format.format_file import CheckpointFormat, decode_format, encode_format
from millpond.model.key_groups import key_groups_for
from tests.agent_driver import CallError, Provider
from tests.checkpoints import state_schema
from tests.unit.agent.histories import offsets, snapshots_at

MakeProvider = Callable[..., Provider]


def test_max_parallelism_is_fixed_at_birth(make: MakeProvider) -> None:
    provider = make(options={"maxParallelism": "24"})
    provider.open(0)
    assert (provider.plan["max_parallelism"], provider.plan["base"]) == (24, 12)
    other = make(partition=1)
    other.open(0)
    assert other.plan["max_parallelism"] == 24
    with pytest.raises(CallError, match="is 24") as caught:
        make(options={"maxParallelism": "48"}).open(0)
    assert caught.value.kind is ErrorKind.MAX_PARALLELISM_MISMATCH


def test_max_parallelism_must_be_a_multiple(make: MakeProvider) -> None:
    with pytest.raises(CallError, match="8 or 12") as caught:
        make(options={"maxParallelism": "10"}).open(0)
    assert caught.value.kind is ErrorKind.MAX_PARALLELISM_INVALID


def test_many_executors_agree_on_the_format(make: MakeProvider) -> None:
    providers = [make(partition=p, partitions_hint=16, run_id=f"run-{p}") for p in range(16)]
    barrier = threading.Barrier(len(providers))
    errors: list[BaseException] = []

    def run(provider: Provider) -> None:
        try:
            barrier.wait()
            provider.service = AgentService()
            provider.open(0)
            provider.commit()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(p,)) for p in providers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {p.plan["max_parallelism"] for p in providers} == {2048}
    assert all(
        make(partition=p, partitions_hint=16).open(1) == providers[p].state for p in range(16)
    )


def test_the_offset_log_rules_over_the_session(make: MakeProvider) -> None:
    provider = make(partitions_hint=200)
    offsets(provider.checkpoint, 0, 8, commit=False)
    provider.open(0)
    assert provider.plan["partitions"] == 8 and provider.plan["base"] == 8


def test_partitions_unknown(make: MakeProvider) -> None:
    with pytest.raises(CallError) as caught:
        make(partitions_hint=None).open(0)
    assert caught.value.kind is ErrorKind.PARTITIONS_UNKNOWN


def test_without_an_offset_log_the_state_tells_the_partitions(make: MakeProvider) -> None:
    writer = make(partitions_hint=4)
    writer.open(0)
    writer.commit()
    reader = make(partitions_hint=None)
    reader.open(1)
    assert reader.plan["partitions"] == 4


@pytest.mark.parametrize("with_snapshot", [False, True])
@pytest.mark.parametrize(("changed", "partition"), [(4, 1), (16, 1), (16, 11)])
def test_partitions_changed_by_hand(
    make: MakeProvider, changed: int, partition: int, with_snapshot: bool
) -> None:
    checkpoint = make().checkpoint
    offsets(checkpoint, 0, 8)
    for p in range(8):
        writer = make(partition=p)
        writer.open(0)
        writer.commit()
        if with_snapshot:
            writer.snapshot()
    offsets(checkpoint, 0, changed)
    with pytest.raises(CallError, match=f"from 8 to {changed}") as caught:
        make(partition=partition).open(1)
    assert caught.value.kind is ErrorKind.PARTITIONS_CHANGED
    assert "Put 8 back" in caught.value.hint


def test_a_past_version_keeps_the_partitions_of_its_batch(make: MakeProvider) -> None:
    writer = make()
    for batch in range(3):
        offsets(writer.checkpoint, batch, 8, commit=False)
    writer.open(0)
    for _ in range(3):
        writer.commit()
    for batch in range(3):
        offsets(writer.checkpoint, batch, 8)
    offsets(writer.checkpoint, 3, 4)  # as a rescale records it
    reader = make()
    assert len(reader.open(2)) == 2
    assert reader.plan["partitions"] == 8
    with pytest.raises(CallError) as caught:
        make().open(4)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING


@pytest.mark.parametrize(
    ("name", "columns", "minds"),
    [
        ("globalLimit", None, False),
        ("stateStoreSave", [], False),
        ("stateStoreSave", ["k"], True),
        ("sessionWindowStateStoreSaveExec", ["session_start"], False),
    ],
)
def test_an_operator_that_lives_in_partition_0_does_not_mind(
    make: MakeProvider, name: str, columns: list[str] | None, minds: bool
) -> None:
    writer = make()
    metadata = writer.checkpoint / "state/0/_metadata/metadata"
    metadata.parent.mkdir(parents=True)
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 8}
    metadata.write_text(
        "v1\n"
        + json.dumps(
            {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": [store]}
        )
    )
    if columns is not None:
        schema = writer.checkpoint / "state/0/0/_metadata/schema"
        schema.parent.mkdir(parents=True)
        schema.write_bytes(state_schema(columns, ["v"]))
    offsets(writer.checkpoint, 0, 8)
    writer.open(0)
    writer.commit()
    offsets(writer.checkpoint, 0, 4)
    reader = make()
    if minds:
        with pytest.raises(CallError, match="PARTITIONS_CHANGED"):
            reader.open(1)
    else:
        assert reader.open(1) == writer.state and reader.plan["partitions"] == 4


def test_partition_key_comes_from_the_operator(make: MakeProvider) -> None:
    provider = make()
    metadata = provider.checkpoint / "state/0/_metadata/metadata"
    metadata.parent.mkdir(parents=True)
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 4}
    metadata.write_text(
        "v1\n"
        + json.dumps(
            {
                "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
                "stateStoreInfo": [store],
            }
        )
    )
    spec = "NoPrefixKeyStateEncoderSpec"
    keyed = provider.call("partition_key", column_family="default", key_columns=["a"], spec=spec)
    keyless = provider.call("partition_key", column_family="default", key_columns=[], spec=spec)
    assert keyed == {"rule": {"kind": "whole"}} and keyless == {"rule": {"kind": "none"}}


def test_a_format_file_that_contradicts_the_state_is_refused(make: MakeProvider) -> None:
    provider = make()
    snapshots_at(provider, until=1)
    other = CheckpointFormat(max_parallelism=8, base=4, created_by="test", created_ms=0)
    (provider.checkpoint / layout.FORMAT_KEY).write_bytes(encode_format(other))
    with pytest.raises(CallError) as caught:
        make().open(1)
    assert caught.value.kind is ErrorKind.FORMAT_DAMAGED


def _key_groups(checkpoint: Path) -> tuple[int, int]:
    stored = decode_format((checkpoint / layout.FORMAT_KEY).read_bytes())
    return stored.max_parallelism, stored.base


@pytest.mark.parametrize("partitions", [12, 100, 300])
def test_a_first_batch_that_was_cut_short_fixes_no_key_groups(
    make: MakeProvider, partitions: int
) -> None:
    """In real-time mode nothing in the offset log tells of it. The next run may have any number."""
    cut = make(partitions_hint=200, run_id="first")
    cut.open(0)
    # all stores of the next run open at the same time
    for partition in range(3):
        provider = make(partition=partition, partitions_hint=partitions, run_id="second")
        provider.open(0)
        assert (provider.plan["max_parallelism"], provider.plan["base"]) == (
            key_groups_for(partitions, None).max_parallelism,
            partitions,
        )
        assert _key_groups(cut.checkpoint)[1] == partitions


@pytest.mark.parametrize("what", ["batch", "state", "option"])
def test_key_groups_that_somebody_needs_stay(make: MakeProvider, what: str) -> None:
    """A batch that began, a store that committed, an option that was chosen for good."""
    writer = make(partitions_hint=200, run_id="first")
    writer.open(0)
    if what == "batch":
        offsets(writer.checkpoint, 0, 12, commit=False)
    if what == "state":
        writer.commit()
    options = {"maxParallelism": "1536"} if what == "option" else {}
    with pytest.raises(CallError) as caught:
        make(partition=1, partitions_hint=12, run_id="second", options=options).open(0)
    assert caught.value.kind is (
        ErrorKind.MAX_PARALLELISM_MISMATCH
        if what == "option"
        else ErrorKind.MAX_PARALLELISM_INVALID
    )
    assert _key_groups(writer.checkpoint) == (25_600, 200)


def test_a_late_task_of_the_run_before_changes_no_key_groups(make: MakeProvider) -> None:
    """It opens its first store when those of the next run are open."""
    make(partitions_hint=200, run_id="first").open(0)
    ahead = CheckpointFormat(
        max_parallelism=1536, base=12, created_by="the next run", created_ms=2**52
    )
    late = make(partition=1, partitions_hint=200, run_id="first")
    (late.checkpoint / layout.FORMAT_KEY).write_bytes(encode_format(ahead))
    with pytest.raises(CallError) as caught:
        late.open(0)
    assert caught.value.kind is ErrorKind.MAX_PARALLELISM_INVALID
    assert _key_groups(late.checkpoint) == (1536, 12)
