"""The plan of what moves between executors, and the agent's call for it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.agent.balance import END, START, Executor, Unit, plan_moves
from millpond.agent.service import AgentService
from tests.agent_driver import CallError, call

MIB = 1 << 20


def executors(*cores: int, budget_bytes: int = 0) -> list[Executor]:
    return [
        Executor(id=str(i), cores=count, budget_bytes=budget_bytes)
        for i, count in enumerate(cores, 1)
    ]


def units(*places: str, busy: float | None = 0.05) -> list[Unit]:
    return [Unit(executor=place, busy=busy) for place in places]


def applied(before: list[Unit], cluster: list[Executor]) -> list[Unit]:
    """Return the units one batch later."""
    after = [u if u.rested is None else replace(u, rested=u.rested + 1) for u in before]
    for move in plan_moves(before, cluster):
        moved = after[move.unit]
        after[move.unit] = replace(moved, executor=move.target, rested=1, moves=moved.moves + 1)
    return after


def load(state: list[Unit], executor: Executor) -> float:
    return sum(u.executor == executor.id for u in state) / executor.cores


def test_executors_that_join_get_their_share_within_ten_batches() -> None:
    cluster, state = executors(1, 1, 1, 1), units(*["1"] * 16)
    sizes = []
    for _ in range(10):
        after = applied(state, cluster)
        sizes.append(sum(a.executor != b.executor for a, b in zip(state, after, strict=True)))
        state = after
    assert Counter(u.executor for u in state) == {"1": 4, "2": 4, "3": 4, "4": 4}
    assert sizes == [6, 3, 2, 1] + [0] * 6, "half of what is too much, then an eighth of all"


@pytest.mark.parametrize("slowness", [1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("seed", range(5))
def test_young_executors_that_are_slow_get_their_share_within_six_batches(
    slowness: float, seed: int
) -> None:
    """Their JVMs compile yet, and the first tasks say how long."""
    noise = Random(seed).uniform
    cluster, state = executors(1, 1, 1, 1), units(*["1"] * 16)
    places: list[list[str]] = [[u.executor] for u in state]
    for batch in range(16):
        if batch == 6:
            most = max(Counter(u.executor for u in state).values())
            assert most <= 1.25 * 4, Counter(u.executor for u in state)
        slow = {e.id: slowness * noise(0.8, 1.2) for e in cluster} | {"1": 1.0}
        measured = [replace(u, busy=0.05 * slow[u.executor] * noise(0.9, 1.1)) for u in state]
        state = applied(measured, cluster)
        for unit, seen in zip(state, places, strict=True):
            if seen[-1] != unit.executor:
                seen.append(unit.executor)
    assert max(Counter(u.executor for u in state).values()) <= 1.25 * 4
    assert all(seen[-1] != "1" for seen in places if len(seen) > 1), "none has come back"
    assert sum(len(seen) - 1 for seen in places) <= 16


def test_balanced_within_the_tolerance_nothing_moves() -> None:
    assert plan_moves(units(*"11112222"), executors(1, 1)) == []
    # 11 and 9 of 20: 1.1 times the share
    assert START > 11 / 10
    assert plan_moves(units(*["1"] * 11, *["2"] * 9), executors(1, 1)) == []
    # three units cannot be two halves
    assert plan_moves(units(*"112"), executors(1, 1)) == []


def test_a_round_that_has_begun_goes_further_than_a_load_that_begins_one() -> None:
    state = units(*["1"] * 11, *["2"] * 9)
    assert END < 11 / 10
    state[-1] = replace(state[-1], rested=1, moves=1)
    assert [m.target for m in plan_moves(state, executors(1, 1))] == ["2"]


def test_units_of_a_lost_executor_get_a_place_at_once() -> None:
    state = units(*"1112" + "9" * 4, busy=None)
    moves = plan_moves(state, executors(1, 1))
    assert [m.unit for m in moves] == [4, 5, 6, 7]
    assert {m.reason for m in moves} == {"executor 9 is gone"}
    assert Counter(m.target for m in moves) == {"2": 3, "1": 1}


def test_one_executor_and_no_store_need_no_plan() -> None:
    assert plan_moves(units(*"99"), executors(1)) == []
    assert plan_moves([], executors(1, 1)) == []


def test_nothing_moves_before_anything_is_known_of_the_time() -> None:
    assert plan_moves(units(*"1111", busy=None), executors(1, 1)) == []


def test_an_executor_with_twice_the_cores_gets_twice_the_stores() -> None:
    cluster, state = executors(1, 2), units(*["1"] * 12)
    for _ in range(10):
        state = applied(state, cluster)
    assert Counter(u.executor for u in state) == {"1": 4, "2": 8}


def test_time_counts_beside_the_number() -> None:
    # As many on each, but the first has the slow ones.
    state = units(*"1111", busy=0.2) + units(*"2222", busy=0.01)
    cluster = executors(1, 1)
    (move,) = plan_moves(state, cluster)
    assert move.unit < 4 and move.target == "2"
    assert move.reason == "executor 1 had 1.34 times its share"
    for _ in range(10):
        state = applied(state, cluster)
    busy = [sum(u.busy or 0 for u in state if u.executor == e.id) for e in cluster]
    assert max(busy) / sum(busy) < 0.75 and plan_moves(state, cluster) == []


def test_memory_counts_as_far_as_the_budget_is_full() -> None:
    large = [replace(u, memory_bytes=45 * MIB) for u in units(*"1111")]
    small = [replace(u, memory_bytes=MIB) for u in units(*"2222")]
    assert plan_moves(large + small, executors(1, 1, budget_bytes=100 * MIB)) != []
    assert plan_moves(large + small, executors(1, 1, budget_bytes=20_000 * MIB)) == []


def test_a_move_that_saves_less_than_its_restore_is_not_made() -> None:
    cluster, state = executors(1, 1), units(*"11111111", busy=0.001)
    assert plan_moves(state, cluster) != []
    dear = [replace(u, restore_ms=1_200_000) for u in state]
    assert plan_moves(dear, cluster) == []
    large = [replace(u, memory_bytes=60_000 * MIB) for u in state]
    assert plan_moves(large, cluster) == []
    # If memory is short, time alone does not decide.
    full = executors(1, 1, budget_bytes=8 * 60_000 * MIB)
    assert plan_moves(large, full) != []


def test_a_unit_that_does_not_stay_where_it_is_sent_is_sent_ever_less() -> None:
    cluster = executors(1, 1)
    sent = []
    state = units(*"11")
    for batch in range(200):
        after = applied(state, cluster)
        sent += [batch for u, v in zip(state, after, strict=True) if u.executor != v.executor]
        state = [replace(u, executor="1") for u in after]  # Spark runs the tasks there again
    assert len(sent) <= 12, sent


PLACES = st.lists(st.integers(1, 6), min_size=1, max_size=80)
CORES = st.lists(st.sampled_from([1, 1, 1, 2, 4]), min_size=2, max_size=6)


@settings(max_examples=200, deadline=None)
@given(PLACES, CORES)
@example([1, 1, 1, 2, 1, 1, 1, 1, 3, 3], [1, 1, 4, 1, 1, 2])  # sums of loads that are not exact
def test_from_any_start_it_is_balanced_within_ten_batches_and_then_at_rest(
    places: list[int], cores: list[int]
) -> None:
    cluster = executors(*cores)
    state = units(*map(str, places))
    share = len(state) / sum(cores)
    for _ in range(10):
        before, state = state, applied(state, cluster)
        lost = {str(p) for p in places} - {e.id for e in cluster}
        moved = [
            u
            for u, v in zip(before, state, strict=True)
            if u.executor != v.executor and u.executor not in lost
        ]
        over = sum(max(0.0, load(before, e) - share) * e.cores for e in cluster)
        assert len(moved) <= max(math.ceil(len(state) / 8), math.ceil(over / 2 + len(lost)))
    for executor in cluster:
        # A store is not divided.
        most = max(1.25 * share, share + 1.25 / min(1, executor.cores))
        assert load(state, executor) <= most, (executor, Counter(u.executor for u in state))
    for _ in range(40):
        before, state = state, applied(state, cluster)
        assert [u.executor for u in before] == [u.executor for u in state]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 0.2)), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_uneven_loads_that_wander_do_not_send_stores_back_and_forth(
    loads: list[tuple[int, float]], random: object
) -> None:
    noise = random.uniform  # type: ignore[attr-defined]
    cluster = executors(1, 1, 1, 1)
    state = [Unit(executor=str(place), busy=busy) for place, busy in loads]
    places: list[list[str]] = [[u.executor] for u in state]
    for _ in range(60):
        measured = [
            replace(u, busy=busy * noise(0.9, 1.1))
            for u, (_, busy) in zip(state, loads, strict=True)
        ]
        state = applied(measured, cluster)
        for unit, seen in zip(state, places, strict=True):
            if seen[-1] != unit.executor:
                seen.append(unit.executor)
    assert all(len(seen) <= 4 for seen in places)
    assert sum(len(seen) - 1 for seen in places) <= 2 * len(places)


def test_each_stage_is_spread_by_itself() -> None:
    # Together the two would be balanced: one waits for the other.
    state = [replace(u, group="a") for u in units(*"11111111")]
    state += [replace(u, group="b") for u in units(*"22222222")]
    cluster = executors(1, 1)
    for _ in range(10):
        state = applied(state, cluster)
    for group in "ab":
        assert Counter(u.executor for u in state if u.group == group) == {"1": 4, "2": 4}
    assert plan_moves(state, cluster) == []


def test_queries_of_one_store_each_are_spread_together() -> None:
    cluster = executors(1, 1, 1, 1)
    state = [replace(u, group=str(n)) for n, u in enumerate(units(*["1"] * 12))]
    for _ in range(10):
        state = applied(state, cluster)
    assert Counter(u.executor for u in state) == dict.fromkeys("1234", 3)
    # Lost ones, too, go where others have least.
    gone = [replace(u, executor="9") if u.executor == "2" else u for u in state]
    assert {m.target for m in plan_moves(gone, cluster)} == {"2"}


# ---- the call


def test_the_agent_answers_with_the_plan() -> None:
    said = call(
        AgentService(),
        "balance",
        executors=[
            {"id": "1", "cores": 1, "budget": 0, "host": "a"},
            {"id": "2", "cores": 1, "budget": 0, "host": "a"},
        ],
        units=[
            {
                "executor": "1",
                "group": "a",
                "memory_bytes": 10,
                "batch_ms": 50,
                "interval_ms": 1000,
                "restore_ms": 5,
                "moves": 0,
            }
        ]
        * 2,
    )
    assert said == {
        "moves": [{"unit": 0, "target": "2", "reason": "executor 1 had 2.00 times its share"}]
    }


def test_a_request_that_is_no_request_is_refused() -> None:
    with pytest.raises(CallError):
        call(
            AgentService(),
            "balance",
            executors=[{"id": "1", "cores": 0, "budget": 0, "host": "a"}],
            units=[],
        )
