"""The verb `plan`: matches the operators of a savepoint with those in the plan of a job, and
restores or starts nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond.format import layout
from millpond.operations.savepoint.fitting_columns import column_options
from millpond.operations.savepoint.new_columns import family_texts_of, own_last_column
from millpond.operations.savepoint.new_operators import described_job
from millpond.operations.savepoint.restore import KEEP, restored
from millpond.query import image as images
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import Image
from millpond.query.index import read_index
from millpond.spark.column_changes import KEY_ADVICE
from millpond.spark.job import JobOperator, new_session, operators
from millpond.spark.job_script import JobQuery, chosen, load
from millpond.spark.metadata import parse_offsets
from millpond.spark.schema_diff import ColumnDiff
from millpond.spark.uris import uri_below
from millpond.storage import LocalStorage, open_storage, root_of

RESTORED, MAPPED, DROPPED, REFUSED, NEW = "restored", "mapped", "dropped", "refused", "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorVerdict:
    """What becomes of one operator."""

    operator: int | None  # its number in the job; None: the job does not have it
    name: str
    saved_as: int | None  # its number in the savepoint; None: the savepoint does not have it
    verdict: str  # restored, mapped, dropped, new (it starts empty) or refused
    reason: str  # why it is refused; else empty
    columns: tuple[ColumnDiff, ...] = ()  # of key and value, where the job has others
    # Options of `edit` and `restore` that give the saved values the columns of the job, a text for
    # each column family; () if none can.
    column_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What `plan` found. `to_json` is the contract of `millpond savepoint plan --json`."""

    savepoint: str
    batch: int
    query: str | None  # queryName of the job's query
    operators: tuple[OperatorVerdict, ...]

    @property
    def ok(self) -> bool:
        """Whether Spark would start the job."""
        return all(operator.verdict != REFUSED for operator in self.operators)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def plan(
    savepoint: str | os.PathLike[str],
    job: str | os.PathLike[str] | Callable[..., object],
    *,
    map_operators: Mapping[int, int] | None = None,
    drop_operators: Collection[int] = (),
    allow_new_operator: bool = False,
    query: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> PlanReport:
    """Say what becomes of the state in a savepoint if a job starts from it. This restores nothing,
    and starts no query.

    The job runs up to the start of its queries. Spark then plans the query, and compares the schema
    of each operator with the saved one, as at a start.

    Args:
        savepoint: path or URI.
        job: path of a Python script, `path.py:function`, or a function that returns a streaming
            DataFrame or its writer.
        map_operators, drop_operators, allow_new_operator: as for `restore`.
        query: `queryName` of the query, if the job has several.
        conf: settings of the Spark session for the job, if none runs yet.
    Raises:
        InvalidInputError: NOT_A_SAVEPOINT, OPERATOR_UNKNOWN, INVALID_ARGUMENT. FormatError:
            SAVEPOINT_DAMAGED.
        UnsupportedError: SHIM_MISSING: a session runs already, without Millpond. What the job
            itself raises.
    """
    origin = root_of(savepoint)
    source = open_storage(origin)
    image = savepoint_image(source, read_index(source, origin))
    numbers = images.renumbering(
        [op.operator for op in image.operators], map_operators or {}, set(drop_operators)
    )
    meant = chosen(load(job, lambda: new_session(conf or {})), query)
    with tempfile.TemporaryDirectory(prefix="millpond-plan-") as directory:
        new_root = os.path.realpath(directory)
        _write_metadata(image, new_root, numbers)
        pinned = parse_offsets(
            image.texts[layout.offsets_key(image.batch)].decode("utf-8"), image.batch
        ).conf
        found = operators(meant, uri_below(new_root, layout.STATE_DIR), image.batch + 1, pinned)
    saved = {op.operator: op.name for op in image.operators}
    told = verdicts(saved, numbers, found, allow_new=allow_new_operator)
    if any(op.columns for op in told):
        told = _with_column_options(told, image, meant, found)
    return PlanReport(savepoint=origin, batch=image.batch, query=meant.name, operators=told)


def _with_column_options(
    told: Sequence[OperatorVerdict], image: Image, meant: JobQuery, found: Sequence[JobOperator]
) -> tuple[OperatorVerdict, ...]:
    """Return the verdicts with what is to be done where columns differ."""
    described = described_job(image, meant)[1]
    buffers = {op.operator: op.buffers for op in found}
    several = len(image.operators) > 1
    result = []
    for one in told:
        new, old = one.operator, one.saved_as
        if not one.columns or new is None or old is None:
            pass
        elif any(column.part == "key" for column in one.columns):
            one = replace(one, reason=f"{one.reason} {KEY_ADVICE}")
        else:
            options = column_options(
                family_texts_of(image.texts, old),
                family_texts_of(described[new], new),
                buffers[new],
                last=own_last_column(one.name),
            )
            chosen_by = f"--operator {old} " if several else ""
            one = replace(one, column_options=tuple(chosen_by + text for text in options))
        result.append(one)
    return tuple(result)


def _write_metadata(image: Image, new_root: str, numbers: Mapping[int, int]) -> None:
    """Write the operator metadata and schemas, with which Spark compares a job's operators.

    Also write the offsets of the first batch that the job would run, as Spark does before it plans
    a batch. Spark reads the metadata of transformWithState only for a batch of the offset log.
    """
    described = restored(
        images.without_state(image), new_root, numbers, offsets=KEEP, query_id=None
    )
    storage = LocalStorage(new_root, fsync=False)
    for key, text in described.texts.items():
        if key.startswith(f"{layout.STATE_DIR}/"):
            storage.put_bytes(key, text)
    first, last = layout.offsets_key(image.batch + 1), layout.offsets_key(image.batch)
    storage.put_bytes(first, image.texts.get(first, image.texts[last]))


def verdicts(
    saved: Mapping[int, str],
    numbers: Mapping[int, int],
    found: Sequence[JobOperator],
    *,
    allow_new: bool = False,
) -> tuple[OperatorVerdict, ...]:
    """Return what becomes of every operator of the savepoint and of the job (pure).

    Args:
        saved: number and name of the savepoint's operators.
        numbers: which number each of them gets; those that are left out are dropped.
        found: the job's operators.
        allow_new: those that no state is for start empty.
    """
    taken = {new: old for old, new in numbers.items()}
    result = [_of_job(op, taken.get(op.operator), saved, allow_new) for op in found]
    there = {op.operator for op in found}
    for old, new in sorted(numbers.items()):
        if new not in there:
            reason = (
                f"the job has no operator {new}: leave it out with --drop-operator {old}, or map it"
            )
            result.append(_verdict(None, saved[old], old, REFUSED, reason))
    result += [
        _verdict(None, saved[old], old, DROPPED) for old in sorted(set(saved) - set(numbers))
    ]
    return tuple(result)


def _of_job(
    op: JobOperator, old: int | None, saved: Mapping[int, str], allow_new: bool
) -> OperatorVerdict:
    alike = [
        number
        for number, name in sorted(saved.items())
        if name == op.name and number != op.operator
    ]
    hint = (
        f"; of that name there is {alike[0]}: --map-operator {alike[0]}={op.operator}"
        if alike
        else ""
    )
    if old is None:
        if allow_new:
            return _verdict(op.operator, op.name, None, NEW)
        reason = (
            "the savepoint has no state for it, and Spark does not start one without;"
            f" --allow-new-operator starts it empty{hint}"
        )
        return _verdict(op.operator, op.name, None, REFUSED, reason)
    if saved[old] != op.name:
        return _verdict(
            op.operator, op.name, old, REFUSED, f"the state is that of a {saved[old]}{hint}"
        )
    if op.error:
        return replace(_verdict(op.operator, op.name, old, REFUSED, op.error), columns=op.columns)
    return _verdict(op.operator, op.name, old, RESTORED if old == op.operator else MAPPED)


def _verdict(
    operator: int | None, name: str, saved_as: int | None, verdict: str, reason: str = ""
) -> OperatorVerdict:
    return OperatorVerdict(
        operator=operator, name=name, saved_as=saved_as, verdict=verdict, reason=reason
    )
