"""What becomes of each operator when a job starts from a savepoint (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from millpond.operations.savepoint.moved_operators import GIVEN, Matching
from millpond.spark.job import JobOperator
from millpond.spark.schema_diff import ColumnDiff

RESTORED, MAPPED, MOVED = "restored", "mapped", "moved"
DROPPED, REFUSED, NEW = "dropped", "refused", "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorVerdict:
    """What becomes of one operator."""

    operator: int | None  # its number in the job; None: the job does not have it
    name: str
    saved_as: int | None  # its number in the savepoint; None: the savepoint does not have it
    # restored, mapped (to another number), moved (it has another number, which nobody confirmed),
    # dropped, new (it starts empty) or refused
    verdict: str
    reason: str  # why it is refused, or what a moved one needs; else empty
    columns: tuple[ColumnDiff, ...] = ()  # of key and value, where the job has others
    # Options of `edit` and `restore` that give the saved values the columns of the job, a text for
    # each column family; () if none can.
    column_options: tuple[str, ...] = ()
    why: str = ""  # by what the two numbers were found to belong together
    warnings: tuple[str, ...] = ()  # what changes although Spark starts the job


def verdicts(
    saved: Mapping[int, str],
    matched: Matching,
    dropped: Collection[int],
    found: Sequence[JobOperator],
    *,
    allow_new: bool = False,
    confirmed: bool = False,
) -> tuple[OperatorVerdict, ...]:
    """Return what becomes of every operator of the savepoint and of the job (pure).

    Args:
        saved: number and name of the savepoint's operators.
        matched: which of them goes on as which operator of the job.
        dropped: those that the user drops.
        found: the job's operators.
        allow_new: those that no state is for start empty.
        confirmed: those that moved get the numbers that were found.
    """
    pairs = {pair.job: pair for pair in matched.pairs}
    unclear_new = {number: str(one) for one in matched.unclear for number in one.job}
    unclear_old = {number: str(one) for one in matched.unclear for number in one.saved}
    result = []
    for op in found:
        pair = pairs.get(op.operator)
        if pair is not None:
            result.append(_of_pair(op, pair.saved, pair.why, saved[pair.saved], confirmed))
        elif op.operator in unclear_new:
            result.append(_verdict(op, None, REFUSED, unclear_new[op.operator]))
        elif not allow_new:
            reason = (
                "the savepoint has no state for it, and Spark does not start one without;"
                " --allow-new-operator starts it empty"
            )
            result.append(_verdict(op, None, REFUSED, reason))
        else:
            result.append(_verdict(op, None, REFUSED if op.error else NEW, op.error))
    there = {op.operator for op in found}
    for old, name in sorted(saved.items()):
        new = matched.numbers.get(old)
        if old in dropped:
            verdict, reason = DROPPED, ""
        elif new in there:
            continue
        elif old in unclear_old:
            verdict, reason = REFUSED, unclear_old[old]
        else:
            what = "has no operator for it" if new is None else f"has no operator {new}"
            verdict = REFUSED
            reason = f"the job {what}: leave it out with --drop-operator {old}, or map it"
        result.append(
            OperatorVerdict(operator=None, name=name, saved_as=old, verdict=verdict, reason=reason)
        )
    return tuple(result)


def _of_pair(op: JobOperator, old: int, why: str, name: str, confirmed: bool) -> OperatorVerdict:
    if name != op.name:
        return _verdict(op, old, REFUSED, f"the state is that of a {name}")
    if op.error:
        told = _verdict(op, old, REFUSED, op.error)
        return replace(told, columns=op.columns, why=why)
    if old == op.operator:
        return replace(_verdict(op, old, RESTORED), why=why)
    if confirmed or why == GIVEN:
        return replace(_verdict(op, old, MAPPED), why=why)
    reason = (
        f"its state is that of operator {old} ({why}): if that is right, restore it with --job and"
        f" --match-operators, or with --map-operator {old}={op.operator}"
    )
    return replace(_verdict(op, old, MOVED, reason), why=why)


def _verdict(
    op: JobOperator, saved_as: int | None, verdict: str, reason: str = ""
) -> OperatorVerdict:
    return OperatorVerdict(
        operator=op.operator, name=op.name, saved_as=saved_as, verdict=verdict, reason=reason
    )
