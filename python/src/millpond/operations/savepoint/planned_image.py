"""Plans what `restore` and `fork` write: the image of the new Spark checkpoint, and what goes with
it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millpond.config import BACKENDS
from millpond.errors import ErrorKind, InvalidInputError
from millpond.format import roots
from millpond.operations.output.atomic_target import check_vacant
from millpond.operations.repartition.origin import Origin
from millpond.operations.repartition.pipeline import plan_repartition
from millpond.operations.repartition.plan import (
    NewPartitions,
    check_placeable,
    plan_partitions,
    repartitioned,
)
from millpond.operations.savepoint.create import check_apart, check_sink_apart
from millpond.operations.savepoint.fit_job import Fit, JobToFit, fit_to_restore
from millpond.operations.savepoint.kafka_warnings import kafka_warnings
from millpond.operations.savepoint.new_operators import initial_state_warnings, with_new_operators
from millpond.operations.savepoint.restored_image import KEEP, placed, restored
from millpond.query import image as images
from millpond.query.image import Image, OperatorImage
from millpond.spark.sinks.keeping import SinkPlan, for_start
from millpond.storage.place import place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the caller wants the new Spark checkpoint to have of its own."""

    keep_query_id: bool
    offsets: str | Mapping[int, str]
    mapped: Mapping[int, int]
    dropped: Collection[int]
    partitions: int | None
    max_parallelism: int | None
    storage_uri: str | None
    backend: str | None
    file_sink: str | os.PathLike[str] | None
    fit: JobToFit | None

    def __post_init__(self) -> None:
        if self.partitions is not None and self.partitions < 1:
            raise InvalidInputError(
                f"{self.partitions} partitions: there must be at least one",
                hint="Name a number from 1 to 65536, or leave it out to keep the present one.",
            )
        if self.storage_uri is not None:
            roots.parse_root(self.storage_uri)
        if self.backend is not None and self.backend not in BACKENDS:
            raise InvalidInputError(
                f"backend: {self.backend!r} is none of {', '.join(BACKENDS)}",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Leave the backend out to keep the present one.",
            )

    def repartitions(self, image: Image) -> bool:
        """Whether every row must be written anew."""
        return self.partitions not in (None, image.partitions) or self.max_parallelism not in (
            None,
            image.max_parallelism,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedImage:
    """The image of the new Spark checkpoint, and what goes with it. Nothing is written yet."""

    image: Image
    numbers: Mapping[int, int]  # of an operator: in the origin, in the new Spark checkpoint
    partitions: NewPartitions | None  # None: the files of the state go over as they are
    new_operators: tuple[int, ...]  # of the job alone
    sink: SinkPlan
    state: str | None  # where the state goes; None: into the Spark checkpoint
    warnings: tuple[str, ...]


def plan_image(origin: Origin, new_root: str, changes: Changes, *, dry_run: bool) -> PlannedImage:
    """Plan the new Spark checkpoint at `new_root`. This reads the log of the new query's file sink,
    and looks whether the place of the state is free.

    Args:
        dry_run: find what else a repartition would meet, because nobody will carry out the plan.
    Raises: as `restore`.
    """
    image = origin.image
    fitted, numbers = _numbers(image, changes)
    new = None
    if origin.canonical or changes.repartitions(image):
        new = plan_partitions(image, changes.partitions, changes.max_parallelism)
        check_placeable(image, new, numbers)
        if dry_run:
            list(plan_repartition(origin.rows, image, new, numbers).writers())
    planned = restored(
        image if new is None else repartitioned(image, new),
        new_root,
        numbers,
        offsets=changes.offsets,
        query_id=image.query_id if changes.keep_query_id else str(uuid.uuid4()),
    )
    backend = images.backend_of(image)
    planned, new_operators = _with_new_operators(planned, fitted, backend, new_root)
    if changes.backend is not None:
        planned = images.with_backend(planned, changes.backend)
    sink = for_start(
        changes.file_sink,
        image.sink,
        batch=planned.batch,
        same_query=changes.keep_query_id,
    )
    if sink.root is not None:
        check_sink_apart(sink.root, new_root)
    return PlannedImage(
        image=planned,
        numbers=numbers,
        partitions=new,
        new_operators=tuple(op.operator for op in new_operators),
        sink=sink,
        state=_free_place(changes, planned, origin, new_root),
        warnings=(
            *sink.warnings,
            *initial_state_warnings(new_operators),
            *(fitted.warnings if fitted is not None else ()),
            *(fitted.source_warnings if fitted is not None and changes.offsets == KEEP else ()),
            *kafka_warnings(planned, fitted.meant if fitted is not None else None),
        ),
    )


def _numbers(image: Image, changes: Changes) -> tuple[Fit | None, dict[int, int]]:
    """Return what the job says, if there is one, and the operators' numbers."""
    if changes.fit is None:
        present = [op.operator for op in image.operators]
        return None, images.renumbering(present, changes.mapped, changes.dropped)
    fitted = fit_to_restore(image, changes.fit, changes.mapped, changes.dropped)
    return fitted, dict(fitted.numbers)


def _with_new_operators(
    image: Image, fitted: Fit | None, backend: str | None, new_root: str
) -> tuple[Image, list[OperatorImage]]:
    """Return the image with the operators that only the job has, and these operators."""
    if fitted is None:
        return image, []
    here = {op.operator for op in image.operators}
    added = with_new_operators(image, fitted.new, fitted.described, backend=backend)
    image = placed(added, new_root)
    return image, [op for op in image.operators if op.operator not in here]


def _free_place(changes: Changes, image: Image, origin: Origin, new_root: str) -> str | None:
    """Return where the state goes; None: into the Spark checkpoint.

    Raises: InvalidInputError: the place is taken.
    """
    state = _state_place(changes, image)
    if state is not None:
        hint = _taken(state, of_savepoint=origin.index is not None)
        check_vacant(state, hint=hint if changes.keep_query_id else "")
        check_apart(origin.root, state)
        check_apart(new_root, state)
    return state


def _state_place(changes: Changes, image: Image) -> str | None:
    if changes.storage_uri is None:
        return None
    if image.query_id is None:
        raise InvalidInputError(
            "there is no query id to keep, after which the place of the state could be named",
            hint="Leave out --keep-query-id, or name the place yourself with --storage-uri.",
        )
    return place_of(changes.storage_uri, image.query_id)


def _taken(state: str, of_savepoint: bool) -> str:
    """Return the hint for a move whose place below storage.uri is taken: most likely, by the state
    that the query had before.
    """
    hint = (
        "A query that keeps its id has this place below --storage-uri, and its state of before is"
        " there. Name another --storage-uri; or leave out --keep-query-id: a fork gets a place of"
        " its own."
    )
    if not of_savepoint:
        return hint  # a fork reads that very state
    return (
        f"{hint} If no query needs that state any more, delete all that is below {state}, and run"
        " the command again."
    )
