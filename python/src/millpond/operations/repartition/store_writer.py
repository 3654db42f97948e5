"""Writes every row of a store anew. Each new store is one changelog that begins with an empty
state.

That needs to know the partition key of the state, unless rows stay in their partitions.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millpond._version import __version__
from millpond.errors import UnsupportedError
from millpond.format import layout
from millpond.format.changelog import (
    DEFAULT_BLOCK_BYTES,
    ChangelogFooter,
    ChangelogHeader,
    ChangelogWriter,
)
from millpond.model.ids import DEFAULT_STORE, StoreId, VersionId
from millpond.model.json_fields import MOST_GROUP_KEYS, ColumnFamily, KeyGroupsInfo, is_unproven
from millpond.model.key_groups import KeyGroups
from millpond.model.physical_key import around
from millpond.operations.repartition.plan import NewPartitions
from millpond.query.image import Image
from millpond.query.row_source import UNKNOWN_GROUP, Rows, RowSource, StoreRows
from millpond.rows import require_tools
from millpond.spark.log_entries import OperatorInfo
from millpond.state.selection import every_rule

_BUFFERED_BYTES = 64 * 1024 * 1024
_NOTHING = ChangelogFooter(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of a changelog, in a file of their own. Without blocks there is no file."""

    path: str
    # Key group (-1: not known) -> keys that the blocks put.
    keys: Mapping[int, int] = field(default_factory=dict)
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
        new: NewPartitions,
        info: OperatorInfo,
        store: StoreId,
        operator: int,
        stores: list[StoreRows],
        source_groups: KeyGroups,
    ) -> None:
        self.image, self.new, self.info = image, new, info
        self.store, self.operator, self.stores = store, operator, stores
        self.count = new.count_of(operator)
        self.same_groups = new.key_groups == source_groups
        self.same_partitions = self.same_groups and (
            new.count == image.partitions or operator in new.single
        )
        self.rules = every_rule(image, operator, info, store.name)
        # Each old partition numbered its column families by itself.
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
        unscalable.sort(key=lambda rows: is_unproven(rows.reason))  # what is known goes first
        self.scalable, self.reason = not unscalable, unscalable[0].reason if unscalable else ""
        if unscalable and not self.same_partitions:
            raise UnsupportedError(
                f"store {unscalable[0].store} cannot be laid out on other partitions:"
                f" {self.reason}",
                hint=(
                    "Restore it with the number of partitions, and the max parallelism, that it"
                    " has."
                ),
            )

    def part(self, source: RowSource, stores: Sequence[StoreRows], directory: str) -> list[Blocks]:
        """Write the rows of some old stores into files below `directory`.

        Return the blocks of each new partition.
        """
        part = [
            Blocks(path=os.path.join(directory, f"{uuid.uuid4().hex}.blocks"))
            for _ in range(self.count)
        ]
        # Memory holds a block of each partition at once.
        block_bytes = max(4096, min(DEFAULT_BLOCK_BYTES, _BUFFERED_BYTES // self.count))
        writers = [
            ChangelogWriter(_Appended(b.path), None, codec="zstd", block_bytes=block_bytes)
            for b in part
        ]
        keys: list[Counter[int]] = [Counter() for _ in range(self.count)]
        for partition, rows in self.routed(source, stores):
            self._append(writers, keys, partition, rows)
        return [
            Blocks(path=blocks.path, keys=counted, totals=writer.end_blocks())
            for blocks, writer, counted in zip(part, writers, keys, strict=True)
        ]

    def changelog(self, parts: Sequence[Blocks], partition: int, directory: str) -> tuple[str, str]:
        """Make the changelog of one partition; return its key and the file below `directory`.

        The parts are used up.
        """
        path = os.path.join(directory, f"{uuid.uuid4().hex}.changelog")
        with open(path, "xb") as whole:
            # The header comes first, and tells the number of keys. So it is written when they are
            # counted.
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
            self.image.batch + 1, self.new.ids[self.operator, partition, self.store.name]
        )
        store = StoreId(self.store.operator, partition, self.store.name)
        return layout.changelog_key(store, version, self.image.spark_checkpoint_format), path

    def _header(self, partition: int, keys: Counter[int]) -> ChangelogHeader:
        version, groups = self.image.batch + 1, self.new.key_groups
        owned = groups.groups_of(partition, self.new.count)
        told = self.scalable and len(owned) <= MOST_GROUP_KEYS and set(keys) <= set(owned)
        return ChangelogHeader(
            version=version,
            id=self.new.ids[self.operator, partition, self.store.name],
            lineage_base=version - 1,
            lineage=("",),
            empty_base=True,
            run_id="",
            store=StoreId(self.store.operator, partition, self.store.name),
            key_groups=KeyGroupsInfo(
                max_parallelism=groups.max_parallelism,
                base=groups.base,
                partitions=self.new.count,
                scalable=self.scalable,
                reason=self.reason,
            ),
            column_families=tuple(self.families.values()),
            keys=keys.total(),
            group_keys=tuple(keys[group] for group in owned) if told else None,
            created_by=f"millpond {__version__}",
        )

    def routed(
        self, source: RowSource, stores: Sequence[StoreRows]
    ) -> Iterator[tuple[int | None, Rows]]:
        """Yield rows and the partition that all of them go to.

        None: each goes to the partition of its key group.
        """
        for store in stores:
            for rows in source.rows(store):
                if self.same_partitions:
                    yield store.store.partition, rows
                elif self.operator in self.new.single:
                    yield 0, replace(rows, groups=[0] * len(rows.keys))
                else:
                    yield None, self._with_groups(rows)

    def _with_groups(self, rows: Rows) -> Rows:
        """Return rows with their new key groups. If nothing else tells these, hash the keys."""
        if self.same_groups and UNKNOWN_GROUP not in rows.groups:
            return rows
        require_tools()
        # Start-up time: numpy.
        from millpond.state.codec import check_supported, decode_keys
        from millpond.state.partitioning import key_groups

        found = self.rules.get(rows.family.name)
        if found is None:
            raise UnsupportedError(
                f"operator {self.info.name}, column family {rows.family.name!r}: its keys, which"
                " nothing describes, cannot be placed on other partitions"
            )
        schema, rule = found
        check_supported(rows.family, schema)
        decoded = decode_keys(rows.keys, schema, place_bytes=0, encoding=rows.family.encoding)
        groups = key_groups(decoded, schema.key, rule, self.new.key_groups.max_parallelism)
        return replace(rows, groups=groups.tolist())

    def _append(
        self,
        writers: list[ChangelogWriter],
        keys: list[Counter[int]],
        partition: int | None,
        rows: Rows,
    ) -> None:
        groups = self.new.key_groups
        family = self.families[rows.family.name]
        if not family.internal:
            for group, count in Counter(rows.groups).items():
                keys[
                    (groups.partition_of(group, self.new.count) if partition is None else partition)
                ][group] += count
        if partition is None and not self.same_groups:
            # Start-up time: numpy. It is there, for it told the key groups.
            from millpond.operations.repartition import packing

            if not packing.is_wide(rows.keys, rows.values):
                for chosen, count, records in packing.packed_puts(
                    rows, family, groups, self.new.count
                ):
                    writers[chosen].put_packed(records, count)
                return
        puts: dict[int, list[tuple[bytes, bytes]]] = {}  # by partition
        # Key group -> what is around its keys, and the puts of its partition.
        targets: dict[int, tuple[bytes, bytes, list[tuple[bytes, bytes]]]] = {}
        for group, key, value in zip(rows.groups, rows.keys, rows.values, strict=True):
            found = targets.get(group)
            if found is None:
                chosen = (
                    groups.partition_of(group, self.new.count) if partition is None else partition
                )
                lead, end = around(family, groups.slot(group))
                found = targets[group] = (lead, end, puts.setdefault(chosen, []))
            found[2].append((found[0] + key + found[1], value))
        for chosen, pairs in puts.items():
            writers[chosen].put_all(pairs)
