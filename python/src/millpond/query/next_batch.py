"""Follows a query: makes the image of its newest batch from that of an earlier one.

It reads the entries of the two logs, and looks whether anything else has changed. To look at the
whole query would be to list and to read much that stays the same from batch to batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millpond.errors import NotFoundError
from millpond.format import layout, spark_names
from millpond.model.ids import StoreId
from millpond.query.image import Image, OperatorImage, StoreImage, operator_info
from millpond.spark.log_entries import CommitEntry, parse_commit, parse_offsets
from millpond.spark.metadata import LEFT_OUT
from millpond.storage import ObjectInfo, Storage


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest entry of the commit log, as a listing shows it."""

    batch: int
    info: ObjectInfo


def newest_entry(storage: Storage) -> Newest | None:
    """Return the newest entry of the commit log; None: there is none."""
    found = [
        Newest(entry[1], info)
        for info in storage.list(f"{spark_names.COMMITS_DIR}/")
        if (entry := spark_names.log_entry(info.key)) is not None
    ]
    return max(found, key=lambda newest: newest.batch, default=None)


Setup = tuple[ObjectInfo, ...]
"""What stays the same while a query runs: its operators' metadata, Millpond's own files."""


def read_setup(storage: Storage, operators: Sequence[int]) -> Setup:
    """Return the files that tell how the query is set up.

    A new run of it writes new ones, and so does a rescale.
    """
    found: list[ObjectInfo] = []
    for operator in operators:
        found += storage.list(f"{spark_names.operator_metadata_dir(operator)}/")
    found += storage.list(layout.OPERATORS_PREFIX)
    for key in (spark_names.QUERY_METADATA_KEY, layout.FORMAT_KEY, layout.RESCALE_JOURNAL_KEY):
        try:
            found.append(storage.stat(key))
        except NotFoundError:
            continue
    return tuple(found)


def next_image(storage: Storage, before: Image, batch: int) -> Image | None:
    """Return the image of a query at a later committed batch, without the files of its stores, and
    in Spark checkpoint format 1 without the ids of their versions.

    Args:
        before: of an earlier batch. The setup must be the same since.
        batch: is committed.
    Returns: None: the batch is not one of the same kind; look at the whole query.
    Raises: FormatError: FORMAT_DAMAGED: an entry is damaged. NotFoundError: an entry is gone.
    """
    commit = parse_commit(_text(storage, spark_names.commits_key(batch)), batch)
    offsets = parse_offsets(_text(storage, spark_names.offsets_key(batch)), batch)
    present = {operator.operator for operator in before.operators}
    same = (
        batch > before.batch
        and offsets.partitions == before.partitions
        and LEFT_OUT not in offsets.conf
        and commit.has_state_ids == (before.spark_checkpoint_format > 1)
        and (not commit.has_state_ids or {*commit.state_ids} == present)
    )
    if not same:
        return None
    operators = []
    for operator in before.operators:
        stores = _stores(before, operator, commit)
        if stores is None:
            return None
        operators.append(replace(operator, stores=stores))
    return replace(
        before,
        batch=batch,
        planned_batch=None,
        watermark_ms=commit.watermark_ms,
        timestamp_ms=offsets.timestamp_ms,
        operators=tuple(operators),
        files=(),
    )


def _stores(
    before: Image, operator: OperatorImage, commit: CommitEntry
) -> tuple[StoreImage, ...] | None:
    """Return the stores of an operator after a commit; None: the commit tells of others."""
    names = operator_info(before, operator.operator).stores
    stores = []
    if commit.has_state_ids and len(commit.state_ids[operator.operator]) != len(
        {store.partition for store in operator.stores}
    ):
        return None
    for store in operator.stores:
        id: str | None = ""
        if commit.has_state_ids:
            at = StoreId(operator.operator, store.partition, store.name)
            id = commit.id_of(at, names)
        if id is None:
            return None
        stores.append(replace(store, version=commit.batch + 1, id=id, keys=-1, size_bytes=0))
    return tuple(stores)


def _text(storage: Storage, key: str) -> str:
    return storage.read(key).decode("utf-8", "replace")
