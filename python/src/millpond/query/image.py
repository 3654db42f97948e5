"""An image: all that makes up a query at one committed batch, as records; and the changes that a
restore makes to it (pure).

The image itself holds the small files (Spark's logs, manifests), because a restore may have to
change them. It only names changelogs and SSTs, which are copied as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format import layout, spark_names
from millpond.format.format_file import decode_format, encode_format
from millpond.format.manifest import decode_manifest, encode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.query.survey import PROVIDER_PACKAGE
from millpond.spark import saved_logs
from millpond.spark.log_entries import (
    OffsetEntry,
    OperatorInfo,
    parse_offsets,
    parse_operator_metadata,
)
from millpond.spark.offsets import check_offsets
from millpond.spark.sinks.recorded import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file that is copied byte by byte."""

    key: str  # in the copy
    source: str  # in what is read
    size_bytes: int
    crc32: int | None  # zlib's, of the whole file; None: to be computed


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreImage:
    """One store at its version."""

    partition: int
    name: str
    version: int
    id: str  # of the attempt that wrote it
    keys: int  # live keys; -1: not counted
    size_bytes: int  # of changelogs and SSTs; after a rescale several stores may share some

    def version_id(self, spark_format: int) -> VersionId:
        """Return the version that its files name. In Spark checkpoint format 1 they name no id."""
        return VersionId(self.version, self.id if spark_format > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorImage:
    """One stateful operator."""

    operator: int
    name: str
    stores: tuple[StoreImage, ...]

    @property
    def keys(self) -> int:
        """Live keys of all stores; -1 if those of one store are not counted."""
        counts = [store.keys for store in self.stores]
        return -1 if -1 in counts else sum(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A query at a committed batch."""

    batch: int
    planned_batch: int | None  # the next batch, if Spark had written down what it reads
    query_id: str | None
    provider: str | None
    spark_checkpoint_format: int
    partitions: int | None
    max_parallelism: int | None  # None: no state was ever written
    key_group_base: int | None
    watermark_ms: int  # of the next batch
    timestamp_ms: int  # when the batch began, since the epoch
    operators: tuple[OperatorImage, ...]
    texts: Mapping[str, bytes]  # small files: key -> content
    files: tuple[StoredFile, ...]
    sink: Sink | None = None  # where the query writes; None: not known

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(len(text) for text in self.texts.values()) + sum(
            file.size_bytes for file in self.files
        )


def renumbering(
    present: Collection[int], mapped: Mapping[int, int], dropped: Collection[int]
) -> dict[int, int]:
    """Return which number each operator gets (old -> new), without those that are dropped.

    Raises: InvalidInputError: OPERATOR_UNKNOWN.
    """
    there = ", ".join(map(str, sorted(present))) or "none"
    for operator in (*mapped, *dropped):
        if operator not in present:
            raise InvalidInputError(
                f"there is no operator {operator}; there are: {there}",
                kind=ErrorKind.OPERATOR_UNKNOWN,
            )
    for operator in mapped:
        if operator in dropped:
            raise InvalidInputError(
                f"operator {operator} is to be mapped and to be dropped",
                kind=ErrorKind.OPERATOR_UNKNOWN,
            )
    numbers: dict[int, int] = {}
    for operator in sorted(set(present) - set(dropped)):
        new = mapped.get(operator, operator)
        if new < 0 or new in numbers.values():
            what = f"{new} is no number" if new < 0 else f"two operators would get the number {new}"
            raise InvalidInputError(f"operator {operator}: {what}", kind=ErrorKind.OPERATOR_UNKNOWN)
        numbers[operator] = new
    return numbers


def with_operators(image: Image, numbers: Mapping[int, int]) -> Image:
    """Return the image with its operators renumbered (old -> new), without those that `numbers`
    does not name.
    """
    texts: dict[str, bytes] = {}
    for key, text in image.texts.items():
        operator = layout.operator_of(key)
        if operator is None:
            if key == layout.FORMAT_KEY and not numbers:
                continue  # the query has no state any more
            match spark_names.log_entry(key):
                case (spark_names.COMMITS_DIR, _):
                    text = saved_logs.commit_with_operators(text, numbers, name=key)
            texts[key] = text
        elif operator in numbers:
            texts[layout.with_operator(key, numbers[operator])] = _of_operator(
                key, text, numbers[operator]
            )
    return replace(
        image,
        texts=texts,
        files=tuple(
            replace(file, key=layout.with_operator(file.key, numbers[operator]))
            for file in image.files
            if (operator := layout.operator_of(file.key)) is not None and operator in numbers
        ),
        operators=tuple(
            sorted(
                (
                    replace(op, operator=numbers[op.operator])
                    for op in image.operators
                    if op.operator in numbers
                ),
                key=lambda op: op.operator,
            )
        ),
    )


def _of_operator(key: str, text: bytes, operator: int) -> bytes:
    if isinstance(layout.file_of(key), layout.ManifestFile):
        # Restores find the SSTs below the store that the manifest names. Changelogs also name their
        # store, but nothing reads it.
        manifest = decode_manifest(text, name=key)
        store = StoreId(operator, manifest.store.partition, manifest.store.name)
        return encode_manifest(replace(manifest, store=store))
    if is_operator_metadata(key):
        return saved_logs.operator_metadata(
            text, operator, lambda path: spark_names.relative_state_schema(path, operator), name=key
        )
    return text


def is_operator_metadata(key: str) -> bool:
    """Whether `key` is operator metadata, v1 or v2."""
    operator = layout.operator_of(key)
    return operator is not None and (
        key == spark_names.operator_metadata_v1_key(operator)
        or key.startswith(spark_names.operator_metadata_v2_prefix(operator))
    )


def operator_info(image: Image, operator: int) -> OperatorInfo:
    """Return Spark's metadata of an operator of `image`. Raises: FormatError: FORMAT_DAMAGED."""
    return operator_info_of(image.texts, operator)


def operator_info_of(texts: Mapping[str, bytes], operator: int) -> OperatorInfo:
    """Return Spark's metadata of an operator.

    Args:
        texts: files of Spark, by key.
    Raises: FormatError: FORMAT_DAMAGED.
    """
    prefix = spark_names.operator_metadata_v2_prefix(operator)
    keys = [key for key in texts if key.startswith(prefix)] or [
        spark_names.operator_metadata_v1_key(operator)
    ]
    return parse_operator_metadata(texts[keys[0]].decode("utf-8"), keys[0])


def with_schema_paths(image: Image, path_of: Callable[[str], str]) -> Image:
    """Return the image with another path for every schema file in operator metadata.

    Args:
        path_of: key of a schema file -> its path.
    """
    texts = dict(image.texts)
    for key, text in image.texts.items():
        operator = layout.operator_of(key)
        if operator is not None and is_operator_metadata(key):

            def mapped(path: str, number: int = operator) -> str:
                return path_of(spark_names.relative_state_schema(path, number))

            texts[key] = saved_logs.operator_metadata(text, operator, mapped, name=key)
    return replace(image, texts=texts)


def with_rescale_pins(image: Image) -> Image:
    """Return the image with the pins that a rescale would have left. They keep the changelogs that
    composed manifests name.
    """
    named: dict[int, set[str]] = {}
    for key, text in image.texts.items():
        parsed = layout.parse_key(key)
        if parsed is not None and isinstance(parsed.file, layout.ManifestFile):
            named.setdefault(parsed.store.operator, set()).update(
                decode_manifest(text, name=key).changelog_keys()
            )
    pins = {
        layout.rescale_pin_key(operator, image.batch): json.dumps(
            {"manifests": [], "changelogs": sorted(keys)}
        ).encode()
        for operator, keys in named.items()
        if keys
    }
    return replace(image, texts={**image.texts, **pins})


def with_operator_records(image: Image) -> Image:
    """Return the image with the files that say which operators the query has. Only Spark checkpoint
    format 1 needs them: its commit log does not say it.
    """
    if image.spark_checkpoint_format > 1 or not (image.provider or "").startswith(PROVIDER_PACKAGE):
        return image
    records = {layout.operator_record_key(op.operator): b"" for op in image.operators}
    return replace(image, texts={**image.texts, **records})


def with_query_id(image: Image, query_id: str) -> Image:
    """Return the image as that of another query."""
    return replace(
        image,
        query_id=query_id,
        texts={**image.texts, spark_names.QUERY_METADATA_KEY: saved_logs.query_metadata(query_id)},
    )


def backend_of(image: Image) -> str | None:
    """Return the backend that the Spark checkpoint remembers, None if it remembers none."""
    text = image.texts.get(layout.FORMAT_KEY)
    return decode_format(text).backend if text is not None else None


def with_backend(image: Image, backend: str) -> Image:
    """Return the image as one of a Spark checkpoint that remembers `backend`.

    Raises: InvalidInputError: INVALID_ARGUMENT: it has no state.
    """
    text = image.texts.get(layout.FORMAT_KEY)
    if text is None:
        raise InvalidInputError(
            "no state was ever written, so there is nothing to remember the backend in",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Leave the backend out, and set the option backend of the session.",
        )
    changed = encode_format(replace(decode_format(text), backend=backend))
    return replace(image, texts={**image.texts, layout.FORMAT_KEY: changed})


def without_state(image: Image) -> Image:
    """Return the image without changelogs, SSTs and manifests."""
    texts = {
        key: text
        for key, text in image.texts.items()
        if not isinstance(layout.file_of(key), layout.ManifestFile)
    }
    return replace(image, texts=texts, files=())


def last_offsets(image: Image) -> OffsetEntry:
    """Return the entry of the offset log for the image's batch. Raises: FormatError."""
    text = image.texts[spark_names.offsets_key(image.batch)]
    return parse_offsets(text.decode("utf-8"), image.batch)


def with_offsets(image: Image, offsets: Mapping[int, str]) -> Image:
    """Return the image with these offsets for its sources, and without what its sources remember.

    A source without an offset begins as in a new query. Watermark and state stay.

    Args:
        offsets: number of a source, from 0 -> its offset, as the offset log writes it.
    Raises:
        InvalidInputError: INVALID_ARGUMENT: there is no such source, or it keeps its own log.
        UnsupportedError: the sources have names instead of numbers.
    """
    last = last_offsets(image)
    if offsets:
        saved_logs.check_numbered(last)
    check_offsets(
        offsets,
        last.numbers,
        [saved_logs.source_log_offset(last, str(n)) is not None for n in offsets],
    )
    texts: dict[str, bytes] = {}
    for key, text in image.texts.items():
        if key.startswith(spark_names.SOURCES_PREFIX):
            continue
        match spark_names.log_entry(key):
            case (spark_names.OFFSETS_DIR, batch):
                if batch == image.batch + 1:
                    continue
                text = saved_logs.with_offsets(text, offsets if batch == image.batch else {})
        texts[key] = text
    return replace(
        image,
        texts=texts,
        files=tuple(
            file for file in image.files if not file.key.startswith(spark_names.SOURCES_PREFIX)
        ),
        planned_batch=None,
    )


def with_entry_before(image: Image) -> Image:
    """Return the image with the last two entries of its offset log.

    At a start Spark reads the entry before the last one, to tell the sources where the last batch
    began. Where Spark has purged it, a copy of the last entry stands for it: the last batch is
    committed, so nobody needs its rows again.
    """
    if image.planned_batch is not None or image.batch == 0:
        return image
    before = spark_names.offsets_key(image.batch - 1)
    if before in image.texts:
        return image
    texts = {**image.texts, before: image.texts[spark_names.offsets_key(image.batch)]}
    return replace(image, texts=dict(sorted(texts.items())))


def image_json(image: Image) -> dict[str, Any]:
    """Return what the image holds, without its files, as JSON values.

    `savepoint.json` contains them.
    """
    return {
        "batch": image.batch,
        "planned_batch": image.planned_batch,
        "query_id": image.query_id,
        "provider": image.provider,
        "spark_checkpoint_format": image.spark_checkpoint_format,
        "partitions": image.partitions,
        "max_parallelism": image.max_parallelism,
        "key_group_base": image.key_group_base,
        "watermark_ms": image.watermark_ms,
        "timestamp_ms": image.timestamp_ms,
        **({"sink": image.sink.to_json()} if image.sink is not None else {}),
        "operators": [
            {
                "operator": op.operator,
                "name": op.name,
                "stores": [
                    {
                        "partition": store.partition,
                        "name": store.name,
                        "version": store.version,
                        "id": store.id,
                        "keys": store.keys,
                        "size_bytes": store.size_bytes,
                    }
                    for store in op.stores
                ],
            }
            for op in image.operators
        ],
    }
