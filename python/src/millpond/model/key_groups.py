"""Key groups: which partition owns which group, and how a store orders them. Pure arithmetic.

`G` = max parallelism = number of key groups; `group = pmod(murmur3(partition key, 42), G)`. Spark
places a row in partition `pmod(murmur3, N)`. If `N` divides `G`, partition `p` owns exactly the
groups `g = p (mod N)`.

Rows lie in the order of *slots*: with `G = base * 2^k`, `slot(g) = (g mod base) * 2^k +
bitreverse_k(g div base)`. So partition `p` of `base * 2^j` owns one contiguous range of slots, and
each doubling halves it. Source: docs/reference/format.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millpond.errors import ErrorKind, InvalidInputError

MAX_PARALLELISM_LIMIT = 65_536  # slots are u16 in physical keys
DEFAULT_GROUPS_LOG2 = 7  # default: 128 key groups per partition


def _invalid(message: str, hint: str = "") -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.MAX_PARALLELISM_INVALID, hint=hint)


def _bitreverse(value: int, bits: int) -> int:
    result = 0
    for _ in range(bits):
        result = (result << 1) | (value & 1)
        value >>= 1
    return result


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """The key groups of one Spark checkpoint.

    Args:
        max_parallelism: number of groups `G`, in 1..65536.
        base: divides `G` with a power of two as quotient.
    Raises: InvalidInputError: MAX_PARALLELISM_INVALID.
    """

    max_parallelism: int
    base: int

    def __post_init__(self) -> None:
        g, base = self.max_parallelism, self.base
        if not 1 <= g <= MAX_PARALLELISM_LIMIT:
            raise _invalid(f"max parallelism {g} is not in 1..{MAX_PARALLELISM_LIMIT}")
        if base < 1 or g % base or (g // base) & (g // base - 1):
            raise _invalid(
                f"base {base} does not divide max parallelism {g} with a power of two as quotient"
            )

    @property
    def bits(self) -> int:
        """`k` of `G = base * 2^k`."""
        return (self.max_parallelism // self.base).bit_length() - 1

    def _check_group(self, number: int, what: str) -> None:
        if not 0 <= number < self.max_parallelism:
            raise InvalidInputError(f"{what} {number} is not in 0..{self.max_parallelism - 1}")

    def _check_partition(self, partition: int, partitions: int) -> None:
        self.check_partitions(partitions)
        if not 0 <= partition < partitions:
            raise InvalidInputError(f"partition {partition} is not in 0..{partitions - 1}")

    def check_partitions(self, partitions: int) -> None:
        """Raise InvalidInputError unless `partitions` divides the max parallelism."""
        if partitions < 1 or self.max_parallelism % partitions:
            raise _invalid(
                f"{partitions} partitions do not divide max parallelism {self.max_parallelism}: "
                "key groups would be split over partitions"
            )

    def slot(self, group: int) -> int:
        """Return the slot of `group`. Both lie in `[0, max_parallelism)`."""
        self._check_group(group, "key group")
        return (group % self.base << self.bits) + _bitreverse(group // self.base, self.bits)

    def group(self, slot: int) -> int:
        """Return the group of `slot`: the inverse of `slot()`."""
        self._check_group(slot, "slot")
        return (slot >> self.bits) + _bitreverse(
            slot & ((1 << self.bits) - 1), self.bits
        ) * self.base

    def groups_of(self, partition: int, partitions: int) -> range:
        """Return the groups whose rows Spark places on `partition` of `partitions`, ascending."""
        self._check_partition(partition, partitions)
        return range(partition, self.max_parallelism, partitions)

    def partition_of(self, group: int, partitions: int) -> int:
        """Return the partition of `partitions` that owns `group`."""
        self._check_group(group, "key group")
        self.check_partitions(partitions)
        return group % partitions

    def slot_ranges(self, partition: int, partitions: int) -> list[tuple[int, int]]:
        """Return the slots that `partition` of `partitions` owns.

        They are half-open ranges: ascending, disjoint, not adjacent.
        """
        self._check_partition(partition, partitions)
        if (
            partitions % self.base == 0
            and (partitions // self.base) & (partitions // self.base - 1) == 0
        ):
            # base * 2^j partitions: each owns one range. It begins at the slot of the lowest group,
            # by construction of the bit reversal.
            width = self.max_parallelism // partitions
            first = self.slot(partition)
            return [(first, first + width)]
        if self.base % partitions == 0:
            blocks = range(partition, self.base, partitions)
            return list(
                merge_ranges([(block << self.bits, (block + 1) << self.bits) for block in blocks])
            )
        slots = sorted(self.slot(group) for group in self.groups_of(partition, partitions))
        return list(merge_ranges([(slot, slot + 1) for slot in slots]))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sort half-open ranges, and join adjacent ones. The ranges must be disjoint."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return tuple(merged)


def divisors_near(max_parallelism: int, partitions: int, count: int = 12) -> tuple[int, ...]:
    """Return `count` divisors of `max_parallelism`: those nearest to `partitions`, ascending.

    A rescale to one of these numbers of partitions moves no row.
    """
    divisors = [d for d in range(1, max_parallelism + 1) if max_parallelism % d == 0]
    return tuple(sorted(sorted(divisors, key=lambda d: abs(d - partitions))[:count]))


def default_max_parallelism(partitions: int) -> int:
    """Return `partitions * 2^k` with the largest `k <= 7` that keeps it at or below 65536.

    Raises: InvalidInputError: MAX_PARALLELISM_INVALID: `partitions` is not in 1..65536.
    """
    _check_state_partitions(partitions)
    for bits in range(DEFAULT_GROUPS_LOG2, -1, -1):
        if partitions << bits <= MAX_PARALLELISM_LIMIT:
            return partitions << bits
    raise AssertionError("unreachable: partitions <= 65536")


def _check_state_partitions(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARALLELISM_LIMIT:
        raise _invalid(
            f"{partitions} state partitions: Millpond supports 1 to {MAX_PARALLELISM_LIMIT}",
            hint=f"Set spark.sql.shuffle.partitions to at most {MAX_PARALLELISM_LIMIT}.",
        )


def base_of(max_parallelism: int, partitions: int) -> int:
    """Return the base for a Spark checkpoint that began with `partitions`.

    `G/N = odd * 2^k`, `base = N * odd`.
    """
    quotient = max_parallelism // partitions
    return max_parallelism // (quotient & -quotient)


def key_groups_for(partitions: int, requested: int | None) -> KeyGroups:
    """Return the key groups of a Spark checkpoint that begins with `partitions` state partitions.

    Args:
        partitions: state partitions of the query.
        requested: option maxParallelism; None for the default.
    Raises:
        InvalidInputError: MAX_PARALLELISM_INVALID: `requested` is not in 1..65536, or is no
            multiple of `partitions`. The message says which, the hint names the nearest valid
            values.
    """
    _check_state_partitions(partitions)
    if requested is None:
        return KeyGroups(default_max_parallelism(partitions), partitions)
    if not 1 <= requested <= MAX_PARALLELISM_LIMIT or requested % partitions:
        highest = MAX_PARALLELISM_LIMIT // partitions * partitions
        below = min(max(requested // partitions * partitions, partitions), highest)
        above = min(max(-(-requested // partitions) * partitions, partitions), highest)
        nearest = " or ".join(str(value) for value in dict.fromkeys((below, above)))
        reason = (
            f"is no multiple of the {partitions} state partitions: key groups would be split over"
            " partitions"
            if 1 <= requested <= MAX_PARALLELISM_LIMIT
            else f"is not in 1..{MAX_PARALLELISM_LIMIT}"
        )
        raise _invalid(
            f"maxParallelism {requested} {reason}; the nearest valid value is {nearest}",
            hint=(
                f"Set maxParallelism to {nearest}, or leave it unset for"
                f" {default_max_parallelism(partitions)}."
            ),
        )
    return KeyGroups(requested, base_of(requested, partitions))
