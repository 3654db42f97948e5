"""How much memory the state of one executor gets if the user did not say; and whether there is
room for what the user said.

Pure: the JVM tells what it knows of itself, its container and its session.
Source: docs/concepts/memory.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.errors import ErrorKind, UnavailableError
from millpond.model.json_fields import JsonFields

MIB = 1 << 20
# Of the maximum heap, if there is room for it.
_HEAP_SHARE = 0.3
# What a JVM with Spark takes beside its heap: classes, compiled code, threads, buffers; and the
# tables of its garbage collector, which grow with the heap.
_JVM_BYTES = 256 * MIB
_JVM_HEAP_SHARE = 0.08
# What RocksDB takes beside its block cache, to write and merge files.
_ROCKSDB_BYTES = 96 * MIB
_AGENT_BYTES = 40 * MIB
# The session's own Python process is in the container, too.
_LOCAL_DRIVER_BYTES = 128 * MIB
# Running batches may take as much again as the budget, before they go to the disk tier.
_SHARE_OF_ROOM = 0.5
_LEAST_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One JVM that runs tasks. All sizes in bytes.

    total: what the machine has, or what the JVM's container may use, if that is less.
    container: what the cluster manager allows this executor, if it counts by itself (YARN).
    heap: the JVM's maximum heap.
    off_heap: Spark's own memory outside of the heap.
    python: what Spark gives its Python workers by a setting of their own; 0: no setting.
    block_cache: of RocksDB.
    is_local: the driver is the executor.
    budget: what the user set; None: nothing.
    """

    total: int
    container: int | None
    heap: int
    off_heap: int
    python: int
    block_cache: int
    is_local: bool
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What state gets.

    Args:
        budget_bytes: the budget.
        missing_bytes: by how much the limit is too low for that budget; 0: it is not.
        reason: the sum that leads to it, in words.
    """

    budget_bytes: int
    missing_bytes: int
    reason: str


def process_of(fields: JsonFields) -> Process:
    """Return what a request of the shim tells."""
    return Process(
        total=fields.integer("total_bytes", 1),
        container=fields.integer("container_bytes", 1) if fields.has("container_bytes") else None,
        heap=fields.integer("heap_bytes", 1),
        off_heap=fields.integer("off_heap_bytes"),
        python=fields.integer("python_bytes"),
        block_cache=fields.integer("block_cache_bytes"),
        is_local=fields.boolean("is_local"),
        budget=fields.integer("budget_bytes", 1) if fields.has("budget_bytes") else None,
    )


def plan_budget(process: Process) -> Budget:
    """Return the budget: what the user set, else 30 % of the heap, or half of what the limit
    leaves, if that is less. 32 MiB it is in any case: a store needs some memory, and the heap may
    stay below its maximum.

    Raises: UnavailableError: MEMORY_EXHAUSTED: what Spark was promised leaves nothing of the limit,
        and the user set no budget.
    """
    limit = min(process.total, process.container or process.total)
    promised = process.heap + process.off_heap + process.python
    if promised >= limit and process.budget is None:
        raise UnavailableError(
            f"the limit of memory is {_mib(limit)} MiB, and Spark alone may take {_mib(promised)}"
            f" MiB of it (heap {_mib(process.heap)}, off-heap memory {_mib(process.off_heap)},"
            f" Python workers {_mib(process.python)}): no room is left for state",
            kind=ErrorKind.MEMORY_EXHAUSTED,
            hint=(
                "Raise the container's limit, or make spark.executor.memory (in local mode"
                " spark.driver.memory) smaller. Who knows better sets the option memory.budget."
            ),
        )
    parts = [
        ("heap", process.heap),
        ("Spark's off-heap memory", process.off_heap),
        ("Python workers", process.python),
        ("the JVM itself", _JVM_BYTES + int(process.heap * _JVM_HEAP_SHARE)),
        ("RocksDB", _ROCKSDB_BYTES + process.block_cache),
        ("the agent", _AGENT_BYTES),
        ("the driver's Python", _LOCAL_DRIVER_BYTES if process.is_local else 0),
    ]
    room = limit - sum(size for _, size in parts)
    wanted = int(process.heap * _HEAP_SHARE)
    half = int(room * _SHARE_OF_ROOM)
    budget = process.budget or min(wanted, max(half, _LEAST_BYTES))
    taken = " - ".join(f"{name} {_mib(size)}" for name, size in parts if size)
    if process.budget is not None:
        how = "memory.budget"
    elif half < budget:
        how = "the least"
    else:
        how = "30 % of the heap" if half >= wanted else "half of the room"
    return Budget(
        budget_bytes=budget,
        missing_bytes=max(0, int(budget / _SHARE_OF_ROOM) - room),
        reason=f"{how}; limit {_mib(limit)} - {taken} = room {_mib(room)} MiB",
    )


def _mib(size: int) -> str:
    return f"{round(size / MIB)}"
