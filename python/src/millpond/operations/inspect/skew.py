"""Tells how evenly state lies: keys and bytes of key groups and partitions, hot key groups, and the
number of partitions that would help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from millpond.model.key_groups import KeyGroups
from millpond.query.erasing import whole
from millpond.query.image import OperatorImage
from millpond.query.row_source import NativeRows
from millpond.query.whole import checkpoint_image
from millpond.storage import Storage

EVEN = 1.25  # even state: the fullest partition holds at most this many times the mean
HOT = 4.0  # a hot key group holds more than this many times the mean of all groups
_MAX_HOT = 10
# Fewer keys than this for each partition lie unevenly by chance, and so little state costs nothing.
_FEW_KEYS = 16
_SMALL_BYTES = 16 * 1024 * 1024
_RANGE = 4  # suggestions lie between a quarter of the present number and four times as many


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one key group, or one partition, holds. Bytes: of keys and values, uncompressed."""

    number: int
    keys: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSkew:
    """How the state of one operator lies.

    groups: those that hold rows, ascending. Empty if key groups say nothing: the state lies in
    partition 0 alone, or Spark did not place its rows by their key.
    fullest: bytes of the fullest partition divided by the mean; 1.0 is even.
    hot: numbers of key groups, the hottest first.
    suggested: a number of partitions near the present one; the present one if that is even enough;
    None: no number would help.
    why: the reason, in words.
    few: there are so few keys, and so little state, that their places say nothing.
    """

    operator: int
    name: str
    partitions: tuple[Load, ...]
    groups: tuple[Load, ...]
    fullest: float
    hot: tuple[int, ...]
    suggested: int | None
    why: str
    few: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewReport:
    """How the state of a query lies.

    `to_json` is the contract of `millpond checkpoint skew --json`.
    """

    checkpoint: str
    batch: int
    partitions: int
    max_parallelism: int
    key_group_base: int
    operators: tuple[OperatorSkew, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def skew(storage: Storage, checkpoint: str, batch: int | None = None) -> SkewReport:
    """Read all rows of the state and count them. A query may run meanwhile.

    Args:
        checkpoint: its name, for messages.
        batch: a committed one; None: the last.
    Raises: MillpondError: as `millpond.operations.savepoint.create`; FormatError: the files do not
        say their key groups. ConflictError: ERASE_UNFINISHED: a key was erased meanwhile.
    """
    with whole(storage, checkpoint):
        return _skew(storage, checkpoint, batch)


def _skew(storage: Storage, checkpoint: str, batch: int | None) -> SkewReport:
    image = checkpoint_image(storage, checkpoint, batch)
    source = NativeRows(storage, image)
    groups, partitions = source.key_groups, image.partitions or 1
    counts = {op.operator: _Counts() for op in image.operators}
    for store in source.stores():
        found = counts[store.store.operator]
        found.scalable &= store.scalable
        for rows in source.rows(store):
            found.add(
                store.store.partition,
                rows.groups,
                rows.keys,
                rows.values,
                internal=rows.family.internal,
            )
    return SkewReport(
        checkpoint=checkpoint,
        batch=image.batch,
        partitions=partitions,
        max_parallelism=groups.max_parallelism,
        key_group_base=groups.base,
        operators=tuple(
            _operator(op, counts[op.operator], groups, partitions) for op in image.operators
        ),
    )


class _Counts:
    """Keys and bytes by key group and by partition."""

    def __init__(self) -> None:
        self.scalable = True
        self.keys: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.partition_keys: Counter[int] = Counter()
        self.partition_bytes: Counter[int] = Counter()

    def add(
        self,
        partition: int,
        groups: list[int],
        keys: list[bytes],
        values: list[bytes],
        *,
        internal: bool,
    ) -> None:
        """Count some rows. Of rows that an operator keeps for itself, count only the bytes."""
        if not internal:
            self.keys.update(groups)
            self.partition_keys[partition] += len(groups)
        by_group: dict[int, int] = {}
        for group, key, value in zip(groups, keys, values, strict=True):
            by_group[group] = by_group.get(group, 0) + len(key) + len(value)
        self.bytes.update(by_group)
        self.partition_bytes[partition] += sum(by_group.values())


def _operator(
    op: OperatorImage, counts: _Counts, groups: KeyGroups, partitions: int
) -> OperatorSkew:
    present = sorted({store.partition for store in op.stores})
    spread = len(present) > 1 or partitions == 1
    loads = tuple(
        Load(number=p, keys=counts.partition_keys[p], bytes=counts.partition_bytes[p])
        for p in present
    )
    suggested: int | None = None
    keys = sum(counts.partition_keys.values())
    small = sum(counts.partition_bytes.values()) < _SMALL_BYTES
    few = small and keys < _FEW_KEYS * partitions
    if not counts.scalable:
        why = "a store of it cannot be rescaled: `millpond checkpoint show` says why"
    elif not spread:
        why = "it keeps all of its state in partition 0, whatever their number"
    elif few:
        suggested = partitions
        why = f"{keys} keys are too few to lie evenly, and too small to matter"
    else:
        suggested, why = suggest(counts.bytes, groups, partitions)
    counted = counts.scalable and spread
    return OperatorSkew(
        operator=op.operator,
        name=op.name,
        partitions=loads,
        groups=(
            tuple(
                Load(number=g, keys=counts.keys[g], bytes=counts.bytes[g])
                for g in sorted(counts.bytes)
            )
            if counted
            else ()
        ),
        fullest=round(_fullest([load.bytes for load in loads]), 3) if counted else 1.0,
        hot=hot_groups(counts.bytes, groups) if counted and not few else (),
        suggested=suggested,
        why=why,
        few=few,
    )


def hot_groups(group_bytes: Mapping[int, int], groups: KeyGroups) -> tuple[int, ...]:
    """Return the hot key groups, the hottest first, ten at most (pure)."""
    mean = sum(group_bytes.values()) / groups.max_parallelism
    hot = sorted(
        (g for g, size in group_bytes.items() if size > HOT * mean),
        key=lambda g: (-group_bytes[g], g),
    )
    # If most groups are empty, all others are above the mean. Then there are few keys, and none is
    # hot.
    return tuple(hot[:_MAX_HOT]) if len(group_bytes) > groups.max_parallelism / 2 else ()


def suggest(
    group_bytes: Mapping[int, int], groups: KeyGroups, partitions: int
) -> tuple[int | None, str]:
    """Return the number nearest to `partitions` that makes the state even and moves no row, and the
    reason (pure).

    None: there is no such number.
    """

    def fullest(count: int) -> float:
        loads = [0] * count
        for group, size in group_bytes.items():
            loads[group % count] += size
        return _fullest(loads)

    now = fullest(partitions)
    if now <= EVEN:
        return partitions, f"the fullest partition holds {now:.2f} times the mean: even enough"
    candidates = [
        count
        for count in range(max(2, -(-partitions // _RANGE)), partitions * _RANGE + 1)
        if groups.max_parallelism % count == 0 and count != partitions
    ]
    # The nearest by ratio. Of two equally near, the larger: it halves the tasks, and the other
    # doubles them.
    for count in sorted(candidates, key=lambda c: (max(c / partitions, partitions / c), -c)):
        if (then := fullest(count)) <= EVEN:
            return (
                count,
                f"the fullest of {count} would hold {then:.2f} times the mean, now {now:.2f}",
            )
    top = max(group_bytes, key=lambda g: (group_bytes[g], -g))
    share = group_bytes[top] / sum(group_bytes.values())
    return (
        None,
        (
            f"the fullest partition holds {now:.2f} times the mean, and no number near {partitions}"
            f" evens it out: key group {top} alone holds {share:.1%} of all"
        ),
    )


def _fullest(loads: list[int]) -> float:
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0
