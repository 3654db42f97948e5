"""Finds all problems that show without reading a store: in Spark's own files, and in the list of
stores.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millpond.errors import ErrorKind, MillpondError, NotFoundError, error
from millpond.format import layout, spark_names
from millpond.query.expected import check_ids, stores_of
from millpond.query.survey import Survey
from millpond.storage import Storage, is_there
from millpond.storage.split import side_of
from millpond.store.files import list_state

_SPARKS = (
    spark_names.QUERY_METADATA_KEY,
    spark_names.OFFSETS_DIR,
    spark_names.COMMITS_DIR,
    spark_names.SOURCES_DIR,
    layout.STATE_DIR,
)
_SIDECAR = struct.Struct(">4sI")  # "crc\0", bytes for each sum; then sums of 4 bytes, big-endian


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong."""

    kind: str
    file: str  # key relative to the Spark checkpoint, or the directory of a store
    message: str
    hint: str


def problems_of_logs(storage: Storage, found: Survey) -> Iterator[Problem]:
    """Yield all of them. Raises: UnavailableError: storage."""
    yield from problems_of_rescale(found)
    yield from (problem_of(lost.key, lost.error()) for lost in found.lost)
    yield from (problem_of(key, e) for key, e in found.errors)
    yield from (
        problem_of(layout.operator_dir(operator), e) for operator, e in sorted(found.left.items())
    )
    yield from _wrong_logs(found)
    yield from _missing_stores(found)
    yield from _wrong_sidecars(storage)


def problems_of_rescale(found: Survey) -> Iterator[Problem]:
    """Yield a problem if a rescale, or Spark's own repartition, has not come to its end."""
    if found.rescale is not None:
        yield problem_of(layout.RESCALE_JOURNAL_KEY, found.rescale)
    if found.repartition is not None and found.spark is not None:
        yield problem_of(spark_names.offsets_key(found.spark.offset_batches[-1]), found.repartition)


def problems_of_claim(storage: Storage) -> Iterator[Problem]:
    """Yield a problem if a command has not made the Spark checkpoint to its end. All that is there
    may be whole.
    """
    places = side_of(storage, spark_names.QUERY_METADATA_KEY), side_of(storage, layout.FORMAT_KEY)
    if any(is_there(place, layout.CLAIM_KEY) for place in places):
        yield problem_of(
            layout.CLAIM_KEY,
            error(
                ErrorKind.CHECKPOINT_UNFINISHED,
                "a command makes this Spark checkpoint, or one has died: no query starts on it",
            ),
        )


def problem_of(file: str, e: MillpondError) -> Problem:
    return Problem(
        kind=e.kind.value, file=file, message=e.message.removeprefix(f"{file}: "), hint=e.hint
    )


def _wrong_logs(found: Survey) -> Iterable[Problem]:
    """Yield commits that can be read, and do not fit the operators."""
    spark = found.spark
    if spark is None or spark.last_committed_batch is None:
        return
    for batch, commit in sorted(spark.commits.items()):
        for operator in found.operators:
            partitions = found.partitions_of(operator, batch)
            if partitions is None or spark.was_left_out(batch):
                continue
            try:
                check_ids(commit, operator, partitions)
            except MillpondError as e:
                yield problem_of(spark_names.commits_key(batch), e)


def _missing_stores(found: Survey) -> Iterable[Problem]:
    batch = found.spark.last_committed_batch if found.spark is not None else None
    if batch is None:
        return
    for operator, info in found.operators.items():
        for store in stores_of(operator, info, found.partitions_of(operator, batch) or 0):
            if store not in found.stores:
                e = error(
                    ErrorKind.CHANGELOG_MISSING,
                    f"no file of this store, although batch {batch} is committed",
                )
                yield problem_of(layout.store_dir(store), e)


def _wrong_sidecars(storage: Storage) -> Iterable[Problem]:
    """Yield the files of a local disk that do not match the sums that Hadoop keeps beside them.

    Spark refuses to read such a file.
    """
    if (
        side_of(storage, spark_names.QUERY_METADATA_KEY).local_path(spark_names.QUERY_METADATA_KEY)
        is None
    ):
        return
    for first in _SPARKS:
        prefix = first if first == spark_names.QUERY_METADATA_KEY else f"{first}/"
        of_state = first == layout.STATE_DIR
        for info in list_state(storage, prefix) if of_state else storage.list(prefix):
            key = info.key
            sidecar = spark_names.crc_key(key)
            if not spark_names.is_sparks(key) or key.endswith(".crc"):
                continue
            try:
                # Twice: a running query may be writing both at this moment.
                fits = any(_fits(storage.read(sidecar), storage.read(key)) for _ in range(2))
            except NotFoundError:
                continue
            if not fits:
                yield problem_of(
                    key,
                    error(
                        ErrorKind.FORMAT_DAMAGED,
                        f"does not match its check sums in {sidecar}: Spark refuses to read it",
                        hint=(
                            f"Restore {key} from a copy; if it is known to be right, delete"
                            f" {sidecar}."
                        ),
                    ),
                )


def _fits(sums: bytes, data: bytes) -> bool:
    if len(sums) < _SIDECAR.size:
        return True  # Hadoop ignores it
    magic, step = _SIDECAR.unpack_from(sums)
    if magic != b"crc\0" or step == 0:
        return True
    wanted = b"".join(
        zlib.crc32(data[at : at + step]).to_bytes(4, "big") for at in range(0, len(data), step)
    )
    return sums[_SIDECAR.size :] == wanted
