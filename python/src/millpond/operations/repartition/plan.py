"""Plans the new partitions of a query's state: their number, their key groups, and the ids,
Spark's logs and metadata of the new Spark checkpoint.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from millpond.errors import ErrorKind, FormatError
from millpond.format import layout, spark_names
from millpond.format.format_file import decode_format, encode_format
from millpond.model.ids import new_id
from millpond.model.key_groups import KeyGroups, key_groups_for
from millpond.model.partition_keys import lives_in_one_partition
from millpond.query.image import (
    Image,
    OperatorImage,
    StoreImage,
    is_operator_metadata,
    operator_info,
)
from millpond.rows import require_tools
from millpond.spark.log_edit import (
    StateIds,
    commit_with_state_ids,
    offsets_with_partitions,
    operator_metadata_with_partitions,
)
from millpond.state.selection import every_rule, family_schemas

Ids = Mapping[tuple[int, int, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """The partitions that the state gets."""

    count: int
    key_groups: KeyGroups
    ids: Ids  # (operator, partition, store) -> id of the version
    single: frozenset[int]  # operators that keep everything in partition 0

    def count_of(self, operator: int) -> int:
        """Return how many partitions an operator has."""
        return 1 if operator in self.single else self.count


def plan_partitions(
    image: Image, partitions: int | None, max_parallelism: int | None
) -> NewPartitions:
    """Return the new partitions of the state of `image`.

    Args:
        partitions: None: as many as it has.
        max_parallelism: None: what the image has if `partitions` divides it, else the default.
    Raises: InvalidInputError: MAX_PARALLELISM_INVALID. FormatError: the image does not say how
        many partitions it has.
    """
    if image.partitions is None:
        raise FormatError("the number of partitions is not recorded", kind=ErrorKind.FORMAT_DAMAGED)
    count = image.partitions if partitions is None else partitions
    known = image.max_parallelism
    if (
        max_parallelism is None
        and known is not None
        and known % count == 0
        and image.key_group_base is not None
    ):
        groups = KeyGroups(known, image.key_group_base)
    else:
        groups = key_groups_for(count, max_parallelism)
    single = frozenset(op.operator for op in image.operators if _is_single(image, op))
    ids = {
        (op.operator, partition, name): new_id()
        for op in image.operators
        for partition in range(1 if op.operator in single else count)
        for name in dict.fromkeys(store.name for store in op.stores)
    }
    return NewPartitions(count=count, key_groups=groups, ids=ids, single=single)


def check_placeable(image: Image, new: NewPartitions, operators: Collection[int]) -> None:
    """Raise UnsupportedError if the key groups change, and the hash of a key's type is not known.
    This asks types alone: whoever writes the rows finds what else there is.

    Args:
        operators: those that go over.
    """
    if image.max_parallelism is None or image.key_group_base is None:
        return
    if KeyGroups(image.max_parallelism, image.key_group_base) == new.key_groups:
        return
    require_tools()
    # Start-up time: pyarrow.
    from millpond.state.partitioning import check_types

    for op in image.operators:
        if op.operator not in operators or op.operator in new.single or op.keys == 0:
            continue
        info = operator_info(image, op.operator)
        for name in info.stores:
            for schema, rule in every_rule(image, op.operator, info, name).values():
                check_types(schema.key, rule)


def _is_single(image: Image, op: OperatorImage) -> bool:
    info = operator_info(image, op.operator)
    columns: dict[str, tuple[str, ...] | None] = {}
    for name in info.stores:
        schemas = family_schemas(image, op.operator, info, name)
        columns[name] = tuple(schemas[0].key.names) if len(schemas) == 1 else None
    return lives_in_one_partition(info.name, columns)


def repartitioned(image: Image, new: NewPartitions) -> Image:
    """Return the image with its state on the new partitions.

    Spark's logs say so. No file of the old state is left.
    """
    texts: dict[str, bytes] = {}
    for key, text in image.texts.items():
        if isinstance(layout.file_of(key), layout.ManifestFile):
            continue
        log = spark_names.log_entry(key)
        if log is not None and log[0] == spark_names.OFFSETS_DIR:
            text = offsets_with_partitions(text.decode(), new.count, name=key).encode()
        elif log is not None:
            text = commit_with_state_ids(text.decode(), state_ids(image, new), name=key).encode()
        elif is_operator_metadata(key):
            text = operator_metadata_with_partitions(text.decode(), new.count, name=key).encode()
        elif key == layout.FORMAT_KEY:
            text = _with_groups(text, new.key_groups)
        texts[key] = text
    return replace(
        image,
        texts=texts,
        files=(),
        partitions=new.count,
        max_parallelism=new.key_groups.max_parallelism,
        key_group_base=new.key_groups.base,
        operators=tuple(_operator(op, image, new) for op in image.operators),
    )


def _operator(op: OperatorImage, image: Image, new: NewPartitions) -> OperatorImage:
    names = dict.fromkeys(store.name for store in op.stores)
    stores = tuple(
        StoreImage(
            partition=partition,
            name=name,
            version=image.batch + 1,
            id=new.ids[op.operator, partition, name],
            keys=-1,
            size_bytes=0,
        )
        for partition in range(new.count_of(op.operator))
        for name in names
    )
    return replace(op, stores=stores)


def state_ids(image: Image, new: NewPartitions) -> StateIds:
    """Return the ids of the new state, as the commit log has them."""
    return {
        op.operator: [
            [
                new.ids[op.operator, partition, store]
                for store in operator_info(image, op.operator).stores
            ]
            for partition in range(new.count_of(op.operator))
        ]
        for op in image.operators
    }


def _with_groups(text: bytes, groups: KeyGroups) -> bytes:
    before = decode_format(text)
    if before.key_groups == groups and not before.earlier:
        return text
    return encode_format(
        replace(before, max_parallelism=groups.max_parallelism, base=groups.base, earlier=())
    )
