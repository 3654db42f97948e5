"""Every event: who logs it, its fields, when, what to do. The only declaration.

An event and a field keep their names: people search logs and alert on them. `millpond/reference.py`
writes the table for the jar and the docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Of every event about a store, before its own.
STORE_FIELDS = ("run_id", "operator", "partition", "store")

FIELDS: dict[str, str] = {
    "run_id": "id of the query's run, as Spark names it",
    "operator": "number of the stateful operator",
    "partition": "number of the partition",
    "store": "name of the store; `default`, but for the stores of a join",
    "version": "version of the store",
    "behind": "how many versions it was behind",
    "duration_ms": "how long it took, in ms",
    "bytes": "size in bytes",
    "reused_bytes": "size in bytes of the SSTs that were in storage already",
    "snapshot_version": "version of the newest snapshot; 0: there is none",
    "changelogs": "number of changelogs",
    "files": "number of files",
    "manifest": "name of the snapshot's manifest",
    "id": "id of the version that was lost, in Spark checkpoint format 2",
    "method": "the call of the protocol; empty: between calls",
    "attempt": "number of the attempt at the call",
    "agent_pid": "process id of the agent",
    "starts": "agents that this executor has started",
    "from_executor": "id of the executor that had the store",
    "to_executor": "id of the executor that gets it",
    "error": "kind of the error, as in [errors](errors.md); else the class of the exception",
    "reason": "the error's message, shortened; the sum that led to a budget, or what it was;"
    " why a store moved",
    "directory": "path on the local disk",
    "write_mib_s": "how fast a file of 2 MiB is written, with its sync, in MiB/s",
    "read_us": "how long a block of 8 KiB takes that is not in memory, in microseconds",
}


@dataclass(frozen=True, slots=True)
class EventInfo:
    """An event.

    Args:
        by: who logs it: the shim in the JVM, or the agent.
        level: of the log.
        fields: those beside `event` and, if `store` is set, STORE_FIELDS. In this order.
        when: what has happened.
        then: what to do.
        store: whether it is about one store.
    """

    by: Literal["shim", "agent", "shim, agent"]
    level: Literal["INFO", "WARN"]
    fields: tuple[str, ...]
    when: str
    then: str
    store: bool = True


_NOTHING = "Nothing."

EVENTS: dict[str, EventInfo] = {
    "restore_done": EventInfo(
        by="shim",
        level="INFO",
        fields=("version", "duration_ms", "bytes", "snapshot_version", "changelogs"),
        when="A store was brought to a version; every store once at the start of a run.",
        then=(
            "Nothing. If stores are restored again and again while the query runs, executors are"
            " lost, or Spark moves the tasks."
        ),
    ),
    "snapshot_made": EventInfo(
        by="shim",
        level="INFO",
        fields=("version", "duration_ms", "bytes", "reused_bytes"),
        when="A snapshot is in storage. `bytes` were uploaded for it.",
        then=_NOTHING,
    ),
    "snapshot_failed": EventInfo(
        by="shim",
        level="WARN",
        fields=("version", "snapshot_version", "error", "reason"),
        when="No snapshot was made. Maintenance tries again; commits go on.",
        then="Mend what `error` names. Until then restarts take ever longer.",
    ),
    "snapshot_passed_over": EventInfo(
        by="shim, agent",
        level="WARN",
        fields=("version", "manifest", "error", "reason"),
        when="A restore could not use a snapshot, and tries an older one.",
        then="Run `millpond checkpoint verify`: files are damaged or missing.",
    ),
    "flushed": EventInfo(
        by="shim",
        level="INFO",
        fields=("version", "duration_ms", "changelogs"),
        when="Changelogs went to the disk tier.",
        then=_NOTHING,
    ),
    "memory_shrunk": EventInfo(
        by="shim",
        level="INFO",
        fields=("version", "duration_ms", "bytes"),
        when="A store gave `bytes` of memory back: the executor exceeded `memory.budget`.",
        then="If it happens in each batch, raise `memory.budget` or add executors.",
    ),
    "spilled": EventInfo(
        by="shim",
        level="INFO",
        fields=("version", "duration_ms", "bytes"),
        when="The running batch outgrew memory: `bytes` of it went to the local disk.",
        then="If it happens often, make batches smaller or raise `memory.budget`.",
    ),
    "attempt_lost": EventInfo(
        by="shim",
        level="WARN",
        fields=("version", "id"),
        when=(
            "Another attempt of a task won a version that this executor has committed too. The"
            " store is loaded again."
        ),
        then=(
            "Nothing, if Spark speculates or retries tasks. Else look for a second query on the"
            " same Spark checkpoint."
        ),
    ),
    "storage_error": EventInfo(
        by="shim",
        level="WARN",
        fields=("method", "duration_ms", "error", "reason"),
        when="The storage refused a call, or did not answer, after all retries.",
        then="Run `millpond storage check` on this host. Spark tries a task again by itself.",
    ),
    "collection_failed": EventInfo(
        by="shim",
        level="WARN",
        fields=("version", "error", "reason"),
        when="Old files were not deleted. Maintenance tries again.",
        then="Mend what `error` names. Until then storage fills.",
    ),
    "files_deleted": EventInfo(
        by="agent",
        level="INFO",
        fields=("version", "files", "bytes"),
        when="Files that no retained version needs were deleted.",
        then=_NOTHING,
    ),
    "local_disk_slow": EventInfo(
        by="agent",
        level="WARN",
        fields=("directory", "write_mib_s", "read_us", "reason"),
        when=(
            "The executor's folder for local state is slow, or on a network: the agent measured it"
            " once, at its start."
        ),
        then="Set `localDir`, or Spark's `spark.local.dir`, to a disk of the machine.",
        store=False,
    ),
    "memory_planned": EventInfo(
        by="shim",
        level="INFO",
        fields=("bytes", "reason"),
        when=(
            "The executor's first store asked how much memory state gets, or whether there is room"
            " for `memory.budget`. `reason` is the sum, in MiB."
        ),
        then="If `bytes` is too little, raise the limit in `reason`, or set `memory.budget`.",
        store=False,
    ),
    "memory_budget_changed": EventInfo(
        by="shim",
        level="WARN",
        fields=("bytes", "reason"),
        when=(
            "A store was opened with another `memory.budget` than the executor's stores had. The"
            " budget is one for all of them: now it is `bytes`."
        ),
        then="Set the same `memory.budget` for all queries and sessions of the application.",
        store=False,
    ),
    "memory_short": EventInfo(
        by="shim",
        level="WARN",
        fields=("bytes", "reason"),
        when=(
            "The container's limit is lower by `bytes` than what heap, JVM and state may take"
            " together. A container that exceeds it is killed."
        ),
        then=(
            "Raise `spark.executor.memoryOverhead` by `bytes`, or make `spark.executor.memory`"
            " smaller by that."
        ),
        store=False,
    ),
    "python_transport_stepped_aside": EventInfo(
        by="shim",
        level="INFO",
        fields=("reason",),
        when=(
            "The state of a Python operator cannot travel in bulk, so it travels by Spark's own"
            " transport. The driver says it of an operator, an executor of what its workers lack."
        ),
        then="Nothing. `reason` says what would have to be different.",
        store=False,
    ),
    "store_moved": EventInfo(
        by="shim",
        level="INFO",
        fields=("version", "from_executor", "to_executor", "reason"),
        when=(
            "The driver gave the store another executor: before a batch, to balance the load, and"
            " the batch restores it there; or because its executor is gone, to the one that follows"
            " it."
        ),
        then=(
            "Nothing. If the same stores move again and again, look at `spark.locality.wait`: Spark"
            " may run their tasks elsewhere."
        ),
    ),
    "store_taken_over": EventInfo(
        by="shim",
        level="INFO",
        fields=("version", "behind", "duration_ms"),
        when=(
            "A task opened a store on the executor that followed it: nothing was restored but the"
            " last `behind` changelogs."
        ),
        then="Nothing. Look why the other executor was lost.",
    ),
    "agent_started": EventInfo(
        by="shim",
        level="INFO",
        fields=("agent_pid", "starts", "duration_ms"),
        when="The agent of this executor runs.",
        then="Nothing for `starts=1`. Else look for `agent_lost` before it.",
        store=False,
    ),
    "agent_lost": EventInfo(
        by="shim",
        level="WARN",
        fields=("agent_pid", "method", "attempt", "error"),
        when="The agent died, or hung and was killed. The next call starts another.",
        then="Look for the OOM killer, and at the agent's lines before this one.",
        store=False,
    ),
    "agent_slow": EventInfo(
        by="shim",
        level="WARN",
        fields=("agent_pid", "method", "attempt"),
        when="The agent lives, but did not answer in time. It is asked again.",
        then="Look at the storage and at the load of the host.",
        store=False,
    ),
}
