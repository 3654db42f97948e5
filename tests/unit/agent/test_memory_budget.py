"""The memory that state gets by default."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from millpond.agent.memory_budget import MIB, Process, plan_budget
from millpond.agent.service import AgentService
from millpond.errors import ErrorKind, MillpondError
from tests.agent_driver import CallError, call

GIB = 1024 * MIB
LARGE = Process(
    total=24 * GIB,
    container=None,
    heap=4 * GIB,
    off_heap=0,
    python=0,
    block_cache=32 * MIB,
    is_local=False,
)
TIGHT = replace(LARGE, total=2 * GIB, heap=GIB)
# Spark's defaults on a cluster: 1 GiB of heap, 384 MiB beside it.
DEFAULT = replace(LARGE, total=1408 * MIB, heap=GIB)


def test_with_room_it_is_30_percent_of_the_heap() -> None:
    budget = plan_budget(LARGE)
    assert budget.budget_bytes == int(4 * GIB * 0.3) and budget.missing_bytes == 0
    assert budget.reason.startswith("30 % of the heap; limit 24576 - heap 4096 - the JVM itself ")


def test_under_a_limit_it_is_half_of_what_is_left() -> None:
    budget = plan_budget(TIGHT)
    assert budget.reason == (
        "half of the room; limit 2048 - heap 1024 - the JVM itself 338 - RocksDB 128"
        " - the agent 40 = room 518 MiB"
    )
    assert round(budget.budget_bytes / MIB) == 259 and budget.missing_bytes == 0


def test_what_sparks_defaults_lack_is_told() -> None:
    budget = plan_budget(DEFAULT)
    assert budget.budget_bytes == 32 * MIB
    assert budget.reason.startswith("the least; ") and budget.reason.endswith("= room -122 MiB")
    enough = replace(DEFAULT, total=DEFAULT.total + budget.missing_bytes)
    assert plan_budget(enough).missing_bytes == 0
    assert plan_budget(replace(enough, total=enough.total - MIB)).missing_bytes == MIB


def test_a_budget_that_the_user_set_stays_and_what_it_lacks_is_told() -> None:
    """It may have as much again for running batches."""
    told = plan_budget(replace(TIGHT, budget=GIB))
    assert told.budget_bytes == GIB and told.reason.startswith("memory.budget; limit 2048 - heap ")
    assert round(told.missing_bytes / MIB) == 2 * 1024 - 518
    assert plan_budget(replace(LARGE, budget=GIB)).missing_bytes == 0
    # Spark alone may take the whole limit: who sets a budget knows better, and is warned.
    assert plan_budget(replace(TIGHT, heap=2 * GIB, budget=GIB)).missing_bytes > 2 * GIB


def test_the_example_of_the_page_has_room() -> None:
    example = replace(LARGE, total=14 * GIB, heap=8 * GIB, budget=2 * GIB)
    assert plan_budget(example).missing_bytes == 0
    assert plan_budget(replace(example, total=12 * GIB)).missing_bytes > 0


@pytest.mark.parametrize(
    "promised",
    [
        replace(TIGHT, heap=2 * GIB),
        replace(TIGHT, off_heap=GIB // 2, python=GIB // 2),
        replace(LARGE, container=GIB),
    ],
)
def test_without_any_room_it_is_refused(promised: Process) -> None:
    with pytest.raises(MillpondError, match="no room is left for state") as caught:
        plan_budget(promised)
    assert caught.value.kind is ErrorKind.MEMORY_EXHAUSTED
    assert "spark.executor.memory" in caught.value.hint and "memory.budget" in caught.value.hint
    assert plan_budget(replace(TIGHT, heap=2 * GIB - MIB)).budget_bytes == 32 * MIB


def test_a_small_heap_asks_for_no_more_than_its_share() -> None:
    small = replace(LARGE, heap=64 * MIB)
    assert plan_budget(small).budget_bytes == int(64 * MIB * 0.3)
    assert plan_budget(replace(small, total=128 * MIB)).budget_bytes == int(64 * MIB * 0.3)


@pytest.mark.parametrize(
    "more", [replace(TIGHT, off_heap=GIB // 4), replace(TIGHT, python=GIB // 4)]
)
def test_what_spark_takes_beside_the_heap_counts(more: Process) -> None:
    assert (
        plan_budget(more).budget_bytes
        == plan_budget(replace(TIGHT, total=TIGHT.total - GIB // 4)).budget_bytes
        == plan_budget(TIGHT).budget_bytes - GIB // 8
    )


def test_what_yarn_allows_counts_if_it_is_less() -> None:
    assert plan_budget(replace(TIGHT, total=24 * GIB, container=2 * GIB)) == plan_budget(TIGHT)
    assert plan_budget(replace(LARGE, container=48 * GIB)) == plan_budget(LARGE)


def test_the_driver_of_a_local_session_counts() -> None:
    less = plan_budget(TIGHT).budget_bytes - plan_budget(replace(TIGHT, is_local=True)).budget_bytes
    assert less == 64 * MIB


def test_the_call_of_the_protocol() -> None:
    request = {
        "total_bytes": 2 * GIB,
        "heap_bytes": GIB,
        "off_heap_bytes": 0,
        "python_bytes": 0,
        "block_cache_bytes": 32 * MIB,
        "is_local": False,
    }
    assert call(AgentService(), "memory_budget", **request) == asdict(plan_budget(TIGHT))
    yarn = {**request, "container_bytes": 1408 * MIB}
    assert call(AgentService(), "memory_budget", **yarn) == asdict(plan_budget(DEFAULT))
    with pytest.raises(CallError, match="heap_bytes"):
        call(AgentService(), "memory_budget", **{**request, "heap_bytes": 0})
