"""Restore by writing every row anew: for another number of partitions, or from a canonical savepoint. Exact, and always possible where
the partition key of the state is known. Each store of the new Spark checkpoint is one changelog that begins with an empty state."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millpond import layout
from millpond._version import __version__
from millpond.changelog import (
    DEFAULT_BLOCK_BYTES,
    ChangelogFooter,
    ChangelogHeader,
    ChangelogWriter,
)
from millpond.errors import ErrorKind, FormatError, UnsupportedError
from millpond.format_file import decode_format, encode_format
from millpond.ids import DEFAULT_STORE, StoreId, VersionId, new_id
from millpond.json_fields import MOST_GROUP_KEYS, RESERVED_SLOT, ColumnFamily, KeyGroupsInfo
from millpond.keygroups import KeyGroups, key_groups_for
from millpond.partition_keys import PartitionKeyRule, lives_in_one_partition, partition_key_rule
from millpond.savepoint.image import (
    Image,
    OperatorImage,
    StoreImage,
    is_operator_metadata,
    operator_info,
)
from millpond.savepoint.row_source import UNKNOWN_GROUP, Rows, RowSource, StoreRows
from millpond.spark_log_edit import (
    StateIds,
    commit_with_state_ids,
    offsets_with_partitions,
    operator_metadata_with_partitions,
)
from millpond.spark_metadata import OperatorInfo
from millpond.state.schema_files import FamilySchema
from millpond.state.selection import family_schemas

_SPECS = {"prefix": "PrefixKeyScanStateEncoderSpec"}
_BUFFERED_BYTES = 64 * 1024 * 1024
_NOTHING = ChangelogFooter(0, 0, 0)
Ids = Mapping[tuple[int, int, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the state is to lie."""

    partitions: int
    key_groups: KeyGroups
    ids: Ids  # (operator, partition, store) -> id of the version
    single: frozenset[int]  # operators that keep everything in partition 0

    def partitions_of(self, operator: int) -> int:
        return 1 if operator in self.single else self.partitions


def plan_layout(image: Image, partitions: int | None, max_parallelism: int | None) -> Layout:
    """Return how to lay out the state of `image` on `partitions` (None: as many as it has).

    Args:
        max_parallelism: None: what it has where that can be kept, else the default.
    Raises: InvalidInputError: MAX_PARALLELISM_INVALID. FormatError: the image does not say what it has.
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
    return Layout(partitions=count, key_groups=groups, ids=ids, single=single)


def _is_single(image: Image, op: OperatorImage) -> bool:
    info = operator_info(image, op.operator)
    columns: dict[str, tuple[str, ...] | None] = {}
    for name in info.stores:
        schemas = family_schemas(image, op.operator, info, name)
        columns[name] = tuple(schemas[0].key.names) if len(schemas) == 1 else None
    return lives_in_one_partition(info.name, columns)


def rule_of(info: OperatorInfo, store: str, schema: FamilySchema) -> PartitionKeyRule:
    """Return which part of the keys of a column family decides their partition."""
    return partition_key_rule(
        info.name,
        store,
        schema.name,
        schema.key.names,
        _SPECS.get(schema.kind, ""),
        info.state_variables,
    )


def laid_out(image: Image, plan: Layout) -> Image:
    """Return the image with its state on other partitions: Spark's logs say so, and no file of the old state is left (pure)."""
    texts: dict[str, bytes] = {}
    for key, text in image.texts.items():
        parsed = layout.parse_key(key)
        if parsed is not None and isinstance(parsed.file, layout.ManifestFile):
            continue
        if key.startswith(f"{layout.OFFSETS_DIR}/"):
            text = offsets_with_partitions(text.decode(), plan.partitions, name=key).encode()
        elif key.startswith(f"{layout.COMMITS_DIR}/"):
            text = commit_with_state_ids(text.decode(), state_ids(image, plan), name=key).encode()
        elif is_operator_metadata(key):
            text = operator_metadata_with_partitions(
                text.decode(), plan.partitions, name=key
            ).encode()
        elif key == layout.FORMAT_KEY:
            text = _with_groups(text, plan.key_groups)
        texts[key] = text
    return replace(
        image,
        texts=texts,
        files=(),
        partitions=plan.partitions,
        max_parallelism=plan.key_groups.max_parallelism,
        key_group_base=plan.key_groups.base,
        operators=tuple(_operator(op, image, plan) for op in image.operators),
    )


def _operator(op: OperatorImage, image: Image, plan: Layout) -> OperatorImage:
    names = dict.fromkeys(store.name for store in op.stores)
    stores = tuple(
        StoreImage(
            partition=partition,
            name=name,
            version=image.batch + 1,
            id=plan.ids[op.operator, partition, name],
            keys=-1,
            size_bytes=0,
        )
        for partition in range(plan.partitions_of(op.operator))
        for name in names
    )
    return replace(op, stores=stores)


def state_ids(image: Image, plan: Layout) -> StateIds:
    """Return the ids of the new state, as the commit log has them."""
    return {
        op.operator: [
            [
                plan.ids[op.operator, partition, store]
                for store in operator_info(image, op.operator).stores
            ]
            for partition in range(plan.partitions_of(op.operator))
        ]
        for op in image.operators
    }


def _with_groups(text: bytes, groups: KeyGroups) -> bytes:
    before = decode_format(text)
    if before.key_groups == groups:
        return text
    return encode_format(
        replace(before, max_parallelism=groups.max_parallelism, base=groups.base, earlier=())
    )


# ---- rows ----------------------------------------------------------------------------------------------------------


def store_writers(
    image: Image,
    plan: Layout,
    source: RowSource,
    source_groups: KeyGroups,
    numbers: Mapping[int, int],
) -> Iterator[StoreWriter]:
    """Yield what writes each store of each operator.

    Args:
        image: before `laid_out`: of what is read.
        source_groups: of what is read.
        numbers: of operators, old to new; the others are left out.
    Raises: UnsupportedError: rows must be placed anew, and their partition key is not known.
    """
    stores = source.stores()
    for op in image.operators:
        if op.operator not in numbers:
            continue
        info = operator_info(image, op.operator)
        for name in info.stores:
            mine = [
                rows
                for rows in stores
                if (rows.store.operator, rows.store.name) == (op.operator, name)
            ]
            yield StoreWriter(
                image,
                plan,
                info,
                StoreId(numbers[op.operator], 0, name),
                op.operator,
                mine,
                source_groups,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of a changelog in a file of their own, which is not there if there are none."""

    path: str
    keys: Mapping[int, int] = field(
        default_factory=dict
    )  # key group (-1: not known) -> live ones that they put
    totals: ChangelogFooter = _NOTHING


class _Appended:
    """A file that is open only while it is written to: there may be thousands."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, data: bytes) -> int:
        with open(self._path, "ab") as file:
            return file.write(data)


class StoreWriter:
    """The changelogs of one store of one operator, in all its partitions."""

    def __init__(
        self,
        image: Image,
        plan: Layout,
        info: OperatorInfo,
        store: StoreId,
        operator: int,
        stores: list[StoreRows],
        source_groups: KeyGroups,
    ) -> None:
        self.image, self.plan, self.info, self.store, self.operator = (
            image,
            plan,
            info,
            store,
            operator,
        )
        self.stores = stores
        self.count = plan.partitions_of(operator)
        self.same_groups = plan.key_groups == source_groups
        self.same_place = self.same_groups and (
            plan.partitions == image.partitions or operator in plan.single
        )
        self.schemas = {s.name: s for s in family_schemas(image, operator, info, store.name)}
        # Each partition of the old state numbered its column families for itself.
        self.families: dict[str, ColumnFamily] = {
            DEFAULT_STORE: ColumnFamily(DEFAULT_STORE, 0, "point")
        }
        for rows in stores:
            for family in rows.families:
                number = (
                    self.families[family.name].id
                    if family.name in self.families
                    else len(self.families)
                )
                self.families[family.name] = replace(family, id=number)
        unscalable = [rows for rows in stores if not rows.scalable]
        self.scalable, self.reason = not unscalable, unscalable[0].reason if unscalable else ""
        if unscalable and not self.same_place:
            raise UnsupportedError(
                f"store {unscalable[0].store} cannot be laid out on other partitions: {self.reason}",
                hint="Restore it with the number of partitions, and the max parallelism, that it has.",
            )

    def part(self, source: RowSource, stores: Sequence[StoreRows], directory: str) -> list[Blocks]:
        """Write the rows of some of the old stores into files below `directory`. Return those of each new partition."""
        part = [
            Blocks(path=os.path.join(directory, f"{uuid.uuid4().hex}.blocks"))
            for _ in range(self.count)
        ]
        # All partitions are buffered at once.
        block_bytes = max(4096, min(DEFAULT_BLOCK_BYTES, _BUFFERED_BYTES // self.count))
        writers = [
            ChangelogWriter(_Appended(b.path), None, codec="zstd", block_bytes=block_bytes)
            for b in part
        ]
        keys: list[Counter[int]] = [Counter() for _ in range(self.count)]
        for partition, rows in self.placed(source, stores):
            self._append(writers, keys, partition, rows)
        return [
            Blocks(path=blocks.path, keys=counted, totals=writer.end_blocks())
            for blocks, writer, counted in zip(part, writers, keys, strict=True)
        ]

    def assemble(
        self, parts: Sequence[Sequence[Blocks]], directory: str
    ) -> Iterator[tuple[str, str]]:
        """Yield, of each changelog, its key and the file below `directory` that it was made in. The parts are used up."""
        for partition in range(self.count):
            yield self.changelog([part[partition] for part in parts], partition, directory)

    def changelog(self, parts: Sequence[Blocks], partition: int, directory: str) -> tuple[str, str]:
        """Make the changelog of one partition; return its key and the file below `directory`. The parts are used up."""
        path = os.path.join(directory, f"{uuid.uuid4().hex}.changelog")
        with open(path, "xb") as whole:
            # The header comes first and tells how many keys there are: it is written when they have been counted.
            keys: Counter[int] = Counter()
            for blocks in parts:
                keys.update(blocks.keys)
            writer = ChangelogWriter(whole, self._header(partition, keys))
            for blocks in parts:
                if os.path.exists(blocks.path):
                    with open(blocks.path, "rb") as file:
                        writer.take_blocks(file, blocks.totals)
                    os.unlink(blocks.path)
            writer.finish()
        version = VersionId(
            self.image.batch + 1, self.plan.ids[self.operator, partition, self.store.name]
        )
        place = StoreId(self.store.operator, partition, self.store.name)
        return layout.changelog_key(place, version, self.image.spark_checkpoint_format), path

    def _header(self, partition: int, keys: Counter[int]) -> ChangelogHeader:
        version, groups = self.image.batch + 1, self.plan.key_groups
        owned = groups.groups_of(partition, self.plan.partitions)
        told = self.scalable and len(owned) <= MOST_GROUP_KEYS and set(keys) <= set(owned)
        return ChangelogHeader(
            version=version,
            id=self.plan.ids[self.operator, partition, self.store.name],
            lineage_base=version - 1,
            lineage=("",),
            empty_base=True,
            run_id="",
            store=StoreId(self.store.operator, partition, self.store.name),
            key_groups=KeyGroupsInfo(
                max_parallelism=groups.max_parallelism,
                base=groups.base,
                partitions=self.plan.partitions,
                scalable=self.scalable,
                reason=self.reason,
            ),
            column_families=tuple(self.families.values()),
            keys=keys.total(),
            group_keys=tuple(keys[group] for group in owned) if told else None,
            created_by=f"millpond {__version__}",
        )

    def placed(
        self, source: RowSource, stores: Sequence[StoreRows]
    ) -> Iterator[tuple[int | None, Rows]]:
        """Yield the partition that rows stay in (None: each goes where its key group belongs), and the rows."""
        for store in stores:
            for rows in source.rows(store):
                if self.same_place:
                    yield store.store.partition, rows
                elif self.operator in self.plan.single:
                    yield 0, replace(rows, groups=[0] * len(rows.keys))
                else:
                    yield None, self._with_groups(rows)

    def _with_groups(self, rows: Rows) -> Rows:
        """Rows with their key groups in the new layout; computed from their keys where nothing else tells them."""
        if self.same_groups and UNKNOWN_GROUP not in rows.groups:
            return rows
        from millpond.rows import require_tools

        require_tools()
        from millpond.state.codec import check_supported, decode_keys
        from millpond.state.partitioning import key_groups

        schema = self.schemas.get(rows.family.name)
        if schema is None:
            raise UnsupportedError(
                f"operator {self.info.name}, column family {rows.family.name!r}: its keys, which nothing describes, cannot be placed "
                "on other partitions"
            )
        check_supported(rows.family, schema)
        rule = rule_of(self.info, self.store.name, schema)
        decoded = decode_keys(rows.keys, schema, place_bytes=0, encoding=rows.family.encoding)
        groups = key_groups(decoded, schema.key, rule, self.plan.key_groups.max_parallelism)
        return replace(rows, groups=groups.tolist())

    def _append(
        self,
        writers: list[ChangelogWriter],
        keys: list[Counter[int]],
        partition: int | None,
        rows: Rows,
    ) -> None:
        groups = self.plan.key_groups
        family = self.families[rows.family.name]
        if not family.internal:
            for group, count in Counter(rows.groups).items():
                keys[
                    groups.partition_of(group, self.plan.partitions)
                    if partition is None
                    else partition
                ][group] += count
        if partition is None and not self.same_groups:
            from millpond.savepoint import packing  # numpy, which told the key groups, is there

            if not packing.is_wide(rows.keys, rows.values):
                for chosen, count, records in packing.packed_puts(
                    rows, family, groups, self.plan.partitions
                ):
                    writers[chosen].put_packed(records, count)
                return
        number = family.id.to_bytes(2, "big")
        puts: dict[int, list[tuple[bytes, bytes]]] = {}  # by partition
        places: dict[int, tuple[bytes, bytes, list[tuple[bytes, bytes]]]] = {}
        for group, key, value in zip(rows.groups, rows.keys, rows.values, strict=True):
            place = places.get(group)
            if place is None:
                slot = groups.slot(group).to_bytes(2, "big")
                chosen = (
                    groups.partition_of(group, self.plan.partitions)
                    if partition is None
                    else partition
                )
                lead, end = (
                    (RESERVED_SLOT.to_bytes(2, "big"), slot)
                    if family.spans_key_groups
                    else (slot, b"")
                )
                place = places[group] = (lead + number, end, puts.setdefault(chosen, []))
            place[2].append((place[0] + key + place[1], value))
        for chosen, found in puts.items():
            writers[chosen].put_all(found)
