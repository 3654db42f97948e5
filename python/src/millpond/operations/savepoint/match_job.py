"""The verb `plan`: matches the operators of a savepoint with those in the plan of a job, and
restores or starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond.operations.savepoint.fit_job import Fit, fit_job, given_numbers
from millpond.operations.savepoint.fitting_columns import UnclearColumnsError, column_options
from millpond.operations.savepoint.kafka_warnings import kafka_warnings
from millpond.operations.savepoint.new_columns import own_last_column
from millpond.operations.savepoint.verdicts import MOVED, REFUSED, OperatorVerdict
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import Image
from millpond.query.index import read_index
from millpond.query.schemas import families_of
from millpond.spark.column_changes import KEY_ADVICE
from millpond.spark.job import new_session
from millpond.spark.job_script import chosen, load
from millpond.storage import open_storage, root_of
from millpond.storage.given import takes_options


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What `plan` found. `to_json` is the contract of `millpond savepoint plan --json`."""

    savepoint: str
    batch: int
    query: str | None  # queryName of the job's query
    operators: tuple[OperatorVerdict, ...]
    problems: tuple[str, ...] = ()  # why Spark would refuse the query, whatever its operators
    warnings: tuple[str, ...] = ()  # sources, or Kafka's topics, no longer fit the saved offsets

    @property
    def ok(self) -> bool:
        """Whether Spark would start the job."""
        return not self.problems and all(
            operator.verdict not in (REFUSED, MOVED) for operator in self.operators
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@takes_options
def plan(
    savepoint: str | os.PathLike[str],
    job: str | os.PathLike[str] | Callable[..., object],
    *,
    map_operators: Mapping[int, int] | None = None,
    drop_operators: Collection[int] = (),
    allow_new_operator: bool = False,
    match_operators: bool = False,
    query: str | None = None,
    conf: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> PlanReport:
    """Say what becomes of the state in a savepoint if a job starts from it. This restores nothing,
    and starts no query.

    The job runs up to the start of its queries. Spark then plans the query. Operators are found by
    name and columns, and Spark compares the schema of each with the saved one, as at a start.
    If the query reads Kafka, its broker is asked whether it still has the saved offsets; the answer
    is in `warnings`.

    Args:
        savepoint: path or URI.
        job: path of a Python script, `path.py:function`, or a function that returns a streaming
            DataFrame or its writer.
        map_operators, drop_operators, allow_new_operator, match_operators: as for `restore`.
        query: `queryName` of the query, if the job has several.
        conf: settings of the Spark session for the job, if none runs yet.
        options: of the savepoint's storage, by name.
    Raises:
        InvalidInputError: NOT_A_SAVEPOINT, OPERATOR_UNKNOWN, INVALID_ARGUMENT, UNKNOWN_OPTION,
            INVALID_OPTION. FormatError: SAVEPOINT_DAMAGED.
        UnsupportedError: SHIM_MISSING: a session runs already, without Millpond. What the job
            itself raises.
    """
    origin = root_of(savepoint)
    source = open_storage(origin)
    image = savepoint_image(source, read_index(source, origin))
    given = given_numbers(image, map_operators or {}, drop_operators)  # before the job runs
    meant = chosen(load(job, lambda: new_session(conf or {})), query)
    fit = fit_job(
        image,
        meant,
        given,
        drop_operators,
        allow_new=allow_new_operator,
        confirmed=match_operators,
    )
    return PlanReport(
        savepoint=origin,
        batch=image.batch,
        query=meant.name,
        operators=_with_column_options(fit, image),
        problems=fit.problems,
        # Last: a broker that does not answer takes a while.
        warnings=(*fit.source_warnings, *kafka_warnings(image, meant)),
    )


_UNCLEAR = (
    "Columns of one name cannot be told apart ({}), so no options are named here. Give"
    " --add-column, --drop-column and --column-order yourself: you know which aggregate each column"
    " belongs to."
)
_ASSUMED = (
    "Columns of one name cannot be told apart ({}). The options are right if all new aggregates"
    " stand behind the old ones."
)


def _with_column_options(fit: Fit, image: Image) -> tuple[OperatorVerdict, ...]:
    """Return the verdicts with what is to be done where columns differ."""
    buffers = {op.operator: op.buffers for op in fit.found}
    several = len(image.operators) > 1
    result = []
    for one in fit.verdicts:
        new, old = one.operator, one.saved_as
        if not one.columns or new is None or old is None:
            pass
        elif any(column.part == "key" for column in one.columns):
            one = replace(one, reason=f"{one.reason} {KEY_ADVICE}")
        else:
            try:
                options, assumed = column_options(
                    families_of(image.texts, old),
                    families_of(fit.described[new], new),
                    buffers[new],
                    last=own_last_column(one.name),
                )
            except UnclearColumnsError as e:
                options, assumed = [], []
                one = replace(one, reason=f"{one.reason} {_UNCLEAR.format(e)}")
            if assumed:
                warning = _ASSUMED.format("; ".join(assumed))
                one = replace(one, warnings=(*one.warnings, warning))
            chosen_by = f"--operator {old} " if several else ""
            one = replace(one, column_options=tuple(chosen_by + text for text in options))
        result.append(one)
    return tuple(result)
