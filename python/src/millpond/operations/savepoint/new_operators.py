"""Gives a new Spark checkpoint the stateful operators that its job has and the saved query lacks,
with empty state.

At a start in the middle of a query Spark wants operator metadata of each operator in the plan, and
loads the state of the last batch. So this plans the job as for its first batch, in a scratch
directory: there Spark itself writes metadata and schemas. An empty changelog at the saved batch
stands for the state of each store.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from millpond._version import __version__
from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader, ChangelogWriter
from millpond.format.format_file import CheckpointFormat, encode_format
from millpond.model.ids import DEFAULT_STORE, StoreId, VersionId, new_id
from millpond.model.json_fields import MOST_GROUP_KEYS, ColumnFamily, KeyGroupsInfo
from millpond.model.key_groups import KeyGroups, key_groups_for
from millpond.model.partition_keys import TRANSFORM_WITH_STATE_OPERATORS
from millpond.query import image as images
from millpond.query.expected import partitions_of, stores_of
from millpond.query.image import Image, OperatorImage, StoreImage
from millpond.query.survey import PROVIDER_PACKAGE
from millpond.spark.job import JobOperator, operators
from millpond.spark.job_script import JobQuery
from millpond.spark.log_edit import commit_with_state_ids
from millpond.spark.log_entries import parse_commit
from millpond.spark.uris import uri_below
from millpond.state.selection import family_schemas
from millpond.storage import LocalStorage

_MAY_HAVE_INITIAL_STATE = TRANSFORM_WITH_STATE_OPERATORS | {"flatMapGroupsWithState"}


def with_new_operators(
    image: Image,
    new: Sequence[JobOperator],
    described: Mapping[int, Mapping[str, bytes]],
    *,
    backend: str | None = None,
) -> Image:
    """Return the image with empty state for each operator that only the job has.

    The operators of `image` are numbered as in the job. Paths of schema files in operator metadata
    are those of a scratch directory that is gone.

    Args:
        new: the operators that only the job has.
        described: of each what Spark writes about it, by key, as `described_job` returns it.
        backend: the one that the saved query remembers. An image without operators forgets it.
    Raises:
        InvalidInputError: INVALID_ARGUMENT: Spark does not start it. UnsupportedError:
            FOREIGN_CHECKPOINT: the saved query kept state elsewhere.
    """
    if new and not (image.provider or "").startswith(PROVIDER_PACKAGE):
        raise UnsupportedError(
            "the saved query was not configured for Millpond, and Spark keeps the provider of a"
            f" query: {image.provider or 'not recorded'}",
            kind=ErrorKind.FOREIGN_CHECKPOINT,
            hint="Start the job with a checkpointLocation of its own.",
        )
    for op in new:
        _check_starts(op)
    for op in new:
        image = _with_empty(image, op.operator, op.name, described[op.operator], backend)
    return image


def described_job(
    image: Image, meant: JobQuery
) -> tuple[list[JobOperator], dict[int, dict[str, bytes]]]:
    """Return the operators of a job that starts anew, and what Spark writes about each: metadata
    and schemas, by key.

    Args:
        image: of the saved query: the job gets the settings that its Spark checkpoint pins.
        meant: the job's query.
    """
    last, pinned = (
        image.texts[spark_names.offsets_key(image.batch)],
        images.last_offsets(image).conf,
    )
    with tempfile.TemporaryDirectory(prefix="millpond-new-") as directory:
        root = os.path.realpath(directory)
        storage = LocalStorage(root, fsync=False)
        # Spark describes transformWithState only for a batch of the offset log.
        storage.put_bytes(spark_names.offsets_key(0), last)
        found = operators(meant, uri_below(root, layout.STATE_DIR), 0, pinned)
        return found, {
            op.operator: {
                info.key: storage.read(info.key)
                for info in storage.list(layout.operator_dir(op.operator) + "/")
                if spark_names.is_of_operator(info.key)
            }
            for op in found
        }


def initial_state_warnings(operators: Collection[OperatorImage]) -> tuple[str, ...]:
    """Return a warning for each new operator that may have an initial state."""
    return tuple(
        f"operator {op.operator} ({op.name}) starts empty: if it has an initial state, Spark does"
        " not read it, because it does so in batch 0 alone; bootstrap fills state from rows"
        for op in operators
        if op.name in _MAY_HAVE_INITIAL_STATE
    )


def _check_starts(op: JobOperator) -> None:
    if op.error:
        raise InvalidInputError(
            f"Spark does not start operator {op.operator} ({op.name}): {op.error}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Mend the job, and run it with an empty checkpointLocation to see that it starts.",
        )


def _with_empty(
    image: Image,
    operator: int,
    name: str,
    described: Mapping[str, bytes],
    backend: str | None,
) -> Image:
    image, groups = _with_key_groups(replace(image, texts={**image.texts, **described}), backend)
    info = images.operator_info(image, operator)
    columns = {}
    kinds = {}
    for store in info.stores:
        schemas = family_schemas(image, operator, info, store)
        columns[store] = tuple(schemas[0].key.names) if len(schemas) == 1 else None
        # A store with several column families opens this one too, and never writes to it.
        kinds[store] = next((s.kind for s in schemas if s.name == DEFAULT_STORE), "point")
    partitions = partitions_of(info, columns, image.partitions)
    assert partitions is not None and image.partitions is not None
    version = image.batch + 1
    stores, texts = [], dict(image.texts)
    ids: list[list[str]] = [[] for _ in range(partitions)]
    for store_id in stores_of(operator, info, partitions):
        id = new_id()
        ids[store_id.partition].append(id)
        changelog = _empty_changelog(
            store_id, version, id, groups, image.partitions, kinds[store_id.name]
        )
        key = layout.changelog_key(store_id, VersionId(version, id), image.spark_checkpoint_format)
        texts[key] = changelog
        stores.append(
            StoreImage(
                partition=store_id.partition,
                name=store_id.name,
                version=version,
                id=id,
                keys=0,
                size_bytes=len(changelog),
            )
        )
    commit = spark_names.commits_key(image.batch)
    text = texts[commit].decode("utf-8")
    before = parse_commit(text, image.batch).state_ids
    with_ids = {op: [list(one) for one in of] for op, of in before.items()} | {operator: ids}
    texts[commit] = commit_with_state_ids(text, with_ids, name=commit).encode("utf-8")
    more = OperatorImage(operator=operator, name=name, stores=tuple(stores))
    return replace(
        image,
        texts=texts,
        operators=tuple(sorted((*image.operators, more), key=lambda op: op.operator)),
    )


def _with_key_groups(image: Image, backend: str | None) -> tuple[Image, KeyGroups]:
    """Return the image with the file that tells its key groups, which a stateless query lacks."""
    if image.partitions is None:
        raise FormatError("the number of partitions is not recorded", kind=ErrorKind.FORMAT_DAMAGED)
    if image.max_parallelism is not None and image.key_group_base is not None:
        groups = KeyGroups(image.max_parallelism, image.key_group_base)
    else:
        groups = key_groups_for(image.partitions, None)
    if layout.FORMAT_KEY in image.texts:
        return image, groups
    made = CheckpointFormat(
        max_parallelism=groups.max_parallelism,
        base=groups.base,
        created_by=f"millpond {__version__}",
        created_ms=time.time_ns() // 1_000_000,
        backend=backend,
    )
    return (
        replace(
            image,
            texts={**image.texts, layout.FORMAT_KEY: encode_format(made)},
            max_parallelism=groups.max_parallelism,
            key_group_base=groups.base,
        ),
        groups,
    )


def _empty_changelog(
    store: StoreId, version: int, id: str, groups: KeyGroups, partitions: int, kind: str
) -> bytes:
    owned = len(groups.groups_of(store.partition, partitions))
    header = ChangelogHeader(
        version=version,
        id=id,
        lineage_base=version - 1,
        lineage=("",),
        empty_base=True,
        run_id="",
        store=store,
        key_groups=KeyGroupsInfo(
            max_parallelism=groups.max_parallelism,
            base=groups.base,
            partitions=partitions,
            scalable=True,
            reason="",
        ),
        # The one that each store has. It makes the others in the shapes that its operator wants.
        column_families=(ColumnFamily(DEFAULT_STORE, 0, kind),),
        keys=0,
        group_keys=(0,) * owned if owned <= MOST_GROUP_KEYS else None,
        created_by=f"millpond {__version__}",
    )
    content = io.BytesIO()
    ChangelogWriter(content, header).finish()
    return content.getvalue()
