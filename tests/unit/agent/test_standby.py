"""Who follows which store, where lost stores go then, and the changelogs that a follower reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.agent.balance import Executor, Unit, plan_moves
from millpond.agent.service import AgentService
from millpond.agent.standby import plan_followers
from millpond.errors import ErrorKind
from tests.agent_driver import CallError, Provider, call

MakeProvider = Callable[..., Provider]


def executors(count: int) -> list[Executor]:
    return [Executor(id=str(i), cores=1) for i in range(1, count + 1)]


def followed(units: list[Unit], cluster: list[Executor]) -> list[Unit]:
    """Return the units with their followers."""
    after = [replace(u, standby="") for u in units]
    for follower in plan_followers(units, cluster):
        after[follower.unit] = replace(after[follower.unit], standby=follower.target)
    return after


PLACES = st.lists(st.integers(1, 5).map(str), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(PLACES, st.integers(2, 5))
def test_each_store_has_a_follower_elsewhere_and_a_loss_is_shared(
    places: list[str], count: int
) -> None:
    cluster = executors(count)
    # each has a unit
    places = [*places, *(e.id for e in cluster)]
    state = followed([Unit(executor=p) for p in places], cluster)
    for source in cluster:
        held = [u for u in state if u.executor == source.id]
        assert all(u.standby not in ("", source.id) for u in held)
        shares = Counter(u.standby for u in held)
        most, least = max(shares.values(), default=0), min(shares.values(), default=0)
        assert most - (least if len(shares) == count - 1 else 0) <= 1
    assert all(u.standby == "" for u in state if int(u.executor) > count), "they are lost already"
    assert followed(state, cluster) == state, "a follower stays"


def test_a_follower_is_on_another_host_if_there_is_one() -> None:
    cluster = [
        Executor(id="1", cores=1, host="a"),
        Executor(id="2", cores=1, host="a"),
        Executor(id="3", cores=1, host="b"),
    ]
    units = [Unit(executor=e) for e in "1" * 4 + "2" + "3" * 4]
    state = followed(units, cluster)
    assert {u.standby for u in state[:5]} == {"3"}
    assert Counter(u.standby for u in state[5:]) == {"1": 2, "2": 2}


def test_a_follower_has_a_store_of_the_same_stage() -> None:
    units = [Unit(executor="1", group="a"), Unit(executor="2", group="b")]
    assert followed(units, executors(2)) == units
    units.append(Unit(executor="2", group="a"))
    assert [u.standby for u in followed(units, executors(2))] == ["2", "", "1"]


def test_a_store_that_is_taken_over_gets_another_follower() -> None:
    cluster = executors(3)
    others = [Unit(executor="2"), Unit(executor="3")]
    assert followed([Unit(executor="1", standby="2"), *others], cluster)[0].standby == "2"
    assert followed([Unit(executor="2", standby="2"), *others], cluster[1:])[0].standby == "3"
    assert plan_followers(others[:1], cluster[1:2]) == [], "one executor alone has nobody"


def test_lost_stores_go_to_their_followers() -> None:
    cluster = executors(3)
    state = [Unit(executor="9", standby="3")] * 4 + [Unit(executor="9", standby="8")]
    assert [m.target for m in plan_moves(state, cluster)] == ["3"] * 4 + ["1"]


def test_the_agent_answers_with_the_followers() -> None:
    unit = {"executor": "1", "group": "a", "memory_bytes": 10, "restore_ms": 5, "moves": 0}
    said = call(
        AgentService(),
        "standby",
        executors=[
            {"id": "1", "cores": 1, "budget": 0, "host": "a"},
            {"id": "2", "cores": 1, "budget": 0, "host": "b"},
        ],
        units=[unit, {**unit, "executor": "2", "standby": "1"}],
    )
    assert said == {"followers": [{"unit": 0, "target": "2"}, {"unit": 1, "target": "1"}]}


# ---- the changelogs


@pytest.mark.parametrize("spark_format", [1, 2])
def test_a_follower_gets_the_changelogs_after_its_version(
    make: MakeProvider, spark_format: int
) -> None:
    writer = make(spark_format=spark_format)
    writer.open(0)
    versions = [writer.commit() for _ in range(6)]
    reader = make(spark_format=spark_format)
    for after in range(1, 6):
        for end in range(after + 1, 7):
            id = versions[end - 1].id if spark_format == 2 else None
            expected = tuple(v.id for v in versions[after:end])
            assert reader.followed(after, end, id) == expected


def test_a_follower_goes_by_the_id_that_spark_names(make: MakeProvider) -> None:
    winner, loser = make(spark_format=2), make(spark_format=2)
    winner.open(0)
    first = winner.commit()
    loser.open(1, first.id)
    second, lost = winner.commit(), loser.commit()
    third = winner.commit()
    reader = make(spark_format=2)
    assert reader.followed(1, 3, third.id) == (second.id, third.id)
    assert reader.followed(1, 2, lost.id) == (lost.id,)


def test_a_changelog_that_is_gone_is_an_error(make: MakeProvider) -> None:
    writer = make()
    writer.open(0)
    for _ in range(4):
        writer.commit()
    (writer.directory / "3.changelog").unlink()
    with pytest.raises(CallError) as caught:
        make().followed(2, 4)
    # Spark checkpoint format 1: the header of version 4 names it, the file is not there.
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING
    with pytest.raises(CallError) as caught:
        make().followed(4, 5)
    assert caught.value.kind is ErrorKind.CHANGELOG_MISSING
