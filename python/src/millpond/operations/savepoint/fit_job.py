"""Plans a job over a saved query: which of its operators go on with which state, and what Spark
says of it. Starts nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format import layout, spark_names
from millpond.operations.savepoint.moved_operators import matching
from millpond.operations.savepoint.new_operators import described_job
from millpond.operations.savepoint.operator_shapes import (
    OperatorShape,
    shape_of,
    silent_changes,
)
from millpond.operations.savepoint.restored_image import KEEP, restored
from millpond.operations.savepoint.verdicts import MOVED, REFUSED, OperatorVerdict, verdicts
from millpond.query import image as images
from millpond.query.image import Image
from millpond.spark.job import JobOperator, new_session, operators, sources
from millpond.spark.job_script import JobQuery, chosen, load
from millpond.spark.metadata import is_avro
from millpond.spark.uris import uri_below
from millpond.storage import LocalStorage

Confirm: TypeAlias = bool | Callable[[tuple[OperatorVerdict, ...]], bool]
"""Whether operators that moved get the numbers that were found; a function is asked."""


@dataclass(slots=True, kw_only=True)
class JobToFit:
    """The job that is to start with a new Spark checkpoint.

    A command may look at a query several times. It runs the user's code once, and asks once.
    """

    job: str | os.PathLike[str] | Callable[..., object]
    query: str | None = None  # queryName, if the job has several
    conf: Mapping[str, str] = field(default_factory=dict)  # of a session, if none runs
    allow_new: bool = False
    confirm: Confirm = False
    _meant: JobQuery | None = field(default=None, init=False)
    _confirmed: tuple[OperatorVerdict, ...] = field(default=(), init=False)

    def meant(self) -> JobQuery:
        """Return the job's query. The first call runs the job. Raises: as `load` and `chosen`."""
        if self._meant is None:
            self._meant = chosen(load(self.job, lambda: new_session(self.conf)), self.query)
        return self._meant

    def confirms(self, found: tuple[OperatorVerdict, ...]) -> bool:
        """Whether the user means what becomes of the operators. It is asked once about the same."""
        if found != self._confirmed:
            if not (callable(self.confirm) and self.confirm(found)):
                return False
            self._confirmed = found
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a job has in common with a saved query."""

    meant: JobQuery  # the job's query
    numbers: Mapping[int, int]  # of operators: in the savepoint -> in the job
    verdicts: tuple[OperatorVerdict, ...]
    found: Sequence[JobOperator]  # of the job, as they start anew
    described: Mapping[int, Mapping[str, bytes]]  # what Spark then writes about each, by key
    problems: tuple[str, ...] = ()
    source_warnings: tuple[str, ...] = ()

    @property
    def new(self) -> list[JobOperator]:
        """The operators that only the job has."""
        taken = set(self.numbers.values())
        return [op for op in self.found if op.operator not in taken]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What changes although Spark starts the job."""
        return tuple(
            f"operator {one.operator} ({one.name}): {text}"
            for one in self.verdicts
            for text in one.warnings
        )


def job_to_fit(
    job: str | os.PathLike[str] | Callable[..., object] | None,
    query: str | None,
    conf: Mapping[str, str] | None,
    allow_new: bool,
    confirm: Confirm,
) -> JobToFit | None:
    """Return the job that a new Spark checkpoint is for; None if none is named.

    Raises: InvalidInputError: INVALID_ARGUMENT: there is no job, and an option needs one.
    """
    if job is not None:
        return JobToFit(job=job, query=query, conf=conf or {}, allow_new=allow_new, confirm=confirm)
    if allow_new or confirm is True:
        what = "new operators are allowed" if allow_new else "operators are to be matched"
        raise InvalidInputError(
            f"{what} without a job to find them in",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name the job: --job job.py:build, in Python job=build.",
        )
    return None


def fit_to_restore(
    image: Image, to_fit: JobToFit, mapped: Mapping[int, int], dropped: Collection[int]
) -> Fit:
    """Return how the job goes on with the image. It does so: the user confirmed what moved.

    Raises:
        InvalidInputError: OPERATOR_UNKNOWN: operators do not fit; INVALID_ARGUMENT: Spark refuses
            the job. What the job itself raises.
    """
    given = given_numbers(image, mapped, dropped)  # before the job runs
    meant = to_fit.meant()
    confirmed = to_fit.confirm is True
    fit = fit_job(image, meant, given, dropped, allow_new=to_fit.allow_new, confirmed=confirmed)
    refused = [one for one in fit.verdicts if one.verdict == REFUSED]
    if refused or fit.problems:
        by_spark = all(one.saved_as is not None and one.why for one in refused)
        raise InvalidInputError(
            "; ".join((*map(_told, refused), *fit.problems)),
            kind=ErrorKind.INVALID_ARGUMENT if by_spark else ErrorKind.OPERATOR_UNKNOWN,
            hint=(
                "millpond savepoint plan shows what fits, and docs/guides/changing.md what can be"
                " done."
            ),
        )
    moved = [one for one in fit.verdicts if one.verdict == MOVED]
    if moved and not to_fit.confirms(fit.verdicts):
        pairs = ", ".join(
            f"operator {one.saved_as} ({one.name}) of the saved query is operator {one.operator} of"
            f" the job ({one.why})"
            for one in moved
        )
        by_hand = " ".join(f"--map-operator {one.saved_as}={one.operator}" for one in moved)
        raise InvalidInputError(
            f"operators moved, and nobody confirmed it: {pairs}",
            kind=ErrorKind.OPERATOR_UNKNOWN,
            hint=(
                "If that is right, add --match-operators (in Python match_operators=True), or"
                f" {by_hand}. If not, say --map-operator OLD=NEW for each."
            ),
        )
    return fit


def _told(one: OperatorVerdict) -> str:
    number = one.operator if one.operator is not None else one.saved_as
    columns = ", ".join(map(str, one.columns))
    return f"operator {number} ({one.name}): {columns or one.reason}"


def given_numbers(
    image: Image, mapped: Mapping[int, int], dropped: Collection[int]
) -> dict[int, int]:
    """Return what the user says about numbers. Raises: InvalidInputError: OPERATOR_UNKNOWN."""
    present = [op.operator for op in image.operators]
    others = set(present) - set(mapped)
    return images.renumbering(present, mapped, set(dropped) | others)


def fit_job(
    image: Image,
    meant: JobQuery,
    given: Mapping[int, int],
    dropped: Collection[int],
    *,
    allow_new: bool,
    confirmed: bool,
) -> Fit:
    """Return how a job goes on with the image of a saved query.

    Args:
        meant: the job's query.
        given: what the user says, from `given_numbers`.
        dropped: the operators that the user drops.
        allow_new: operators that no state is for start empty.
        confirmed: operators that moved get the numbers that were found.
    """
    found, described = described_job(image, meant)
    saved = {
        op.operator: shape_of(image.texts, op.operator)
        for op in image.operators
        if op.operator not in dropped
    }
    job = {
        op.operator: shape_of(texts, op.operator)
        if (texts := described[op.operator])
        else OperatorShape(name=op.name, families={})
        for op in found
    }
    matched = matching(saved, job, given)
    numbers = dict(sorted(matched.numbers.items()))
    pinned = images.last_offsets(image).conf
    with tempfile.TemporaryDirectory(prefix="millpond-plan-") as directory:
        new_root = os.path.realpath(directory)
        _write_metadata(image, new_root, numbers)
        checked = operators(meant, uri_below(new_root, layout.STATE_DIR), image.batch + 1, pinned)
    anew = {op.operator: op.error for op in found}
    taken = set(numbers.values())
    checked = [
        op if op.operator in taken else replace(op, error=anew.get(op.operator, ""), columns=())
        for op in checked
    ]
    told = verdicts(
        {op.operator: op.name for op in image.operators},
        matched,
        set(dropped),
        checked,
        allow_new=allow_new,
        confirmed=confirmed,
    )
    by_name = is_avro(pinned)
    problems, source_warnings = _compared_sources(image, meant)
    return Fit(
        meant=meant,
        numbers=numbers,
        verdicts=tuple(_with_warnings(one, saved, job, by_name) for one in told),
        found=found,
        described=described,
        problems=problems,
        source_warnings=source_warnings,
    )


def _with_warnings(
    one: OperatorVerdict,
    saved: Mapping[int, OperatorShape],
    job: Mapping[int, OperatorShape],
    by_name: bool,
) -> OperatorVerdict:
    if one.operator is None or one.saved_as is None or one.verdict == REFUSED:
        return one
    warnings = silent_changes(saved[one.saved_as], job[one.operator], by_name=by_name)
    return replace(one, warnings=warnings)


def _compared_sources(image: Image, meant: JobQuery) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what Spark refuses of the job's sources, and what it takes in silence."""
    last = images.last_offsets(image)
    if last.has_names:
        return (), ()
    saved = len(last.sources) if last.version == "v1" else last.numbers
    job = len(sources(meant, {}))
    if job == saved:
        return (), ()
    told = f"the job reads {job} sources, the saved query {saved}: Spark"
    if last.version == "v1":
        return (f"{told} does not start a query with another number of sources",), ()
    # Such an entry has no line for a source that gave nothing yet.
    return (), (
        f"{told} starts it, and gives each source the offset that one of its number had. That is"
        " right if the last ones are new, or gone, or had given nothing yet",
    )


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
        if key.startswith(layout.STATE_PREFIX):
            storage.put_bytes(key, text)
    first, last = spark_names.offsets_key(image.batch + 1), spark_names.offsets_key(image.batch)
    storage.put_bytes(first, image.texts.get(first, image.texts[last]))
