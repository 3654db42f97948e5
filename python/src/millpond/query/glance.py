"""A glance at a query: what Spark wrote about one batch, without a look at the files of any store.
Enough to find a key.

It raises an error for anything unusual. Whoever glances then looks at the whole query, which tells
what is wrong, or that nothing is.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

from millpond.errors import ErrorKind, NotFoundError, error
from millpond.format import layout, spark_names
from millpond.query.erasing import Erasures
from millpond.query.expected import (
    check_ids,
    lost_entries,
    operators_at,
    partitions_of,
    schema_keys,
    stores_of,
)
from millpond.query.from_savepoint import is_bulk
from millpond.query.image import Image, OperatorImage, StoredFile, StoreImage, operator_info_of
from millpond.query.index import NATIVE, SavepointIndex, damaged
from millpond.query.schemas import schema_files
from millpond.spark.log_entries import CommitEntry, OffsetEntry, parse_commit, parse_offsets
from millpond.spark.metadata import PROVIDER_KEY, SparkMetadata, logged_batches
from millpond.spark.state_schemas import key_columns
from millpond.storage import Storage, read_if_there
from millpond.store.collection.announcements import erasures_among


def glance(storage: Storage, batch: int | None, operator: int | None) -> tuple[Image, Erasures]:
    """Return what Spark wrote about a committed batch of the query in `storage`, and the erasures
    so far.

    The image has the stores with their versions, in Spark checkpoint format 1 without ids, and of
    its texts operator metadata and schemas alone. It has no files, and no key groups.

    Args:
        batch: None: the last one.
        operator: of this one alone; None: of all.
    Raises: MillpondError: look at the whole query.
    """
    entries = SparkMetadata(
        query_id=None,
        # In this order: a committed batch then has its entry in the offset log, too.
        commit_batches=tuple(logged_batches(storage, spark_names.COMMITS_DIR)),
        offset_batches=tuple(logged_batches(storage, spark_names.OFFSETS_DIR)),
        offsets={},
        commits={},
        operators={},
    )
    for lost in lost_entries(entries):
        raise lost.error()
    wanted = batch if batch is not None else entries.last_committed_batch
    if wanted is None or wanted not in entries.commit_batches:
        raise NotFoundError(f"batch {wanted}", kind=ErrorKind.BATCH_NOT_COMMITTED)
    commit = parse_commit(_read(storage, spark_names.commits_key(wanted)), wanted)
    numbers = {wanted} | ({wanted + 1} & {*entries.offset_batches} if batch is not None else set())
    offsets = {n: parse_offsets(_read(storage, spark_names.offsets_key(n)), n) for n in numbers}
    if batch is not None and replace(entries, offsets=offsets).was_left_out(wanted):
        raise error(ErrorKind.BATCH_NOT_COMMITTED, f"batch {wanted} was left out by a rescale")
    ours = {info.key for info in storage.list(f"{layout.MILLPOND_DIR}/")}
    if layout.RESCALE_JOURNAL_KEY in ours:
        raise error(ErrorKind.RESCALE_UNFINISHED, "a rescale is under way")
    so_far = Erasures(erasures_among(ours), None)
    # A listing may show what an erasure announced, and not the journal that it wrote before.
    if layout.ERASE_JOURNAL_KEY in ours or (
        so_far.announced and read_if_there(storage, layout.ERASE_JOURNAL_KEY) is not None
    ):
        raise error(ErrorKind.ERASE_UNFINISHED, "a key is being erased")
    if layout.FORMAT_KEY not in ours:
        raise NotFoundError(f"{layout.FORMAT_KEY} is not there")
    recorded = {n for key in ours if (n := layout.parse_operator_record(key)) is not None}
    operators = operators_at(commit, recorded)
    if not operators or (operator is not None and operator not in operators):
        raise error(ErrorKind.OPERATOR_UNKNOWN, f"there is no operator {operator}")
    texts: dict[str, bytes] = {}
    images = [
        _operator(storage, number, commit, offsets[wanted], texts)
        for number in operators
        if operator in (None, number)
    ]
    entry = offsets[wanted]
    image = Image(
        batch=wanted,
        planned_batch=None,
        query_id=None,
        provider=entry.conf.get(PROVIDER_KEY),
        spark_checkpoint_format=2 if commit.has_state_ids else 1,
        partitions=entry.partitions,
        max_parallelism=None,
        key_group_base=None,
        watermark_ms=commit.watermark_ms,
        timestamp_ms=entry.timestamp_ms,
        operators=tuple(images),
        texts=texts,
        files=(),
    )
    return image, so_far


def savepoint_glance(storage: Storage, index: SavepointIndex, operator: int | None) -> Image:
    """Return the image of a native savepoint, with operator metadata and schemas alone as texts.

    Args:
        operator: of this one alone; None: of all.
    Raises: MillpondError: look at the whole savepoint.
    """
    if index.format != NATIVE:
        raise damaged("no native savepoint")
    texts = {}
    for key, entry in index.files.items():
        if spark_names.is_of_operator(key) and operator in (None, layout.operator_of(key)):
            texts[key] = storage.read(key)
            if zlib.crc32(texts[key]) != entry.crc32:
                raise damaged(f"{key}: its check sum does not match")
    chosen = [op for op in index.image.operators if operator in (None, op.operator)]
    try:
        for op in chosen:
            info = operator_info_of(texts, op.operator)
            for store in info.stores:
                schema_files(texts, op.operator, info, store)
    except KeyError as e:
        raise damaged(f"{e.args[0]} is not in it") from e
    files = [
        StoredFile(key=key, source=key, size_bytes=entry.size_bytes, crc32=entry.crc32)
        for key, entry in index.files.items()
        if is_bulk(key)
    ]
    return replace(index.image, operators=tuple(chosen), texts=texts, files=tuple(files))


def _operator(
    storage: Storage,
    operator: int,
    commit: CommitEntry,
    offsets: OffsetEntry,
    texts: dict[str, bytes],
) -> OperatorImage:
    """Return an operator after a batch. Adds its metadata and schemas to `texts`."""
    prefix = spark_names.operator_metadata_v2_prefix(operator)
    newest = max(
        (n for n in logged_batches(storage, prefix.rstrip("/")) if n <= commit.batch), default=None
    )
    key = spark_names.operator_metadata_v1_key(operator) if newest is None else f"{prefix}{newest}"
    texts[key] = storage.read(key)
    info = operator_info_of(texts, operator)
    columns: dict[str, tuple[str, ...] | None] = {}
    for store in info.stores:
        for schema in schema_keys(operator, info, store):
            texts[schema] = storage.read(schema)
            columns[store] = key_columns(texts[schema], name=schema)
    partitions = partitions_of(info, columns, offsets.partitions)
    if partitions is None:
        raise damaged("the offset log does not tell the number of partitions")
    check_ids(commit, operator, partitions)
    stores = []
    for at in stores_of(operator, info, partitions):
        id = commit.id_of(at, info.stores) if commit.has_state_ids else ""
        if id is None:
            raise damaged(f"{spark_names.commits_key(commit.batch)}: no id of store {at}")
        stores.append(
            StoreImage(
                partition=at.partition,
                name=at.name,
                version=commit.batch + 1,
                id=id,
                keys=-1,
                size_bytes=0,
            )
        )
    return OperatorImage(operator=operator, name=info.name, stores=tuple(stores))


def sizes_of(index: SavepointIndex) -> Mapping[str, int]:
    """Return the sizes in bytes of the files of a savepoint, by key."""
    return {key: entry.size_bytes for key, entry in index.files.items()}


def _read(storage: Storage, key: str) -> str:
    return storage.read(key).decode("utf-8", "replace")
