"""The form of a physical key, by which changelogs and RocksDB know a row.

    [slot u16][column family u16][key]
    [0xFFFF u16][column family u16][key][slot u16]    if the order of the family spans key groups

Numbers are big-endian. `ColumnFamily.slot_of` reads the slot. Loops over rows cut keys by these
constants: a call for each row would take as long as the rest. Source: docs/reference/format.md,
"Physical key".
"""

from __future__ import annotations

from millpond.model.json_fields import ColumnFamily

# The slot of column families whose order spans partition keys: timers, TTL, eviction by time.
RESERVED_SLOT = 0xFFFF
SLOT_BYTES = 2
PHYSICAL_PREFIX_BYTES = 4  # slot and column family
FAMILY = slice(2, 4)  # of a physical key: the number of its column family


def around(family: ColumnFamily, slot: int) -> tuple[bytes, bytes]:
    """Return the bytes before a key of the family, and those behind it.

    Args:
        slot: that of the key's group.
    """
    place, number = slot.to_bytes(SLOT_BYTES, "big"), family.id.to_bytes(2, "big")
    if family.spans_key_groups:
        return RESERVED_SLOT.to_bytes(SLOT_BYTES, "big") + number, place
    return place + number, b""


def bare(physical: bytes, family: ColumnFamily) -> bytes:
    """Return the key in a physical key of the family: without slot and column family."""
    return physical[PHYSICAL_PREFIX_BYTES : -SLOT_BYTES if family.spans_key_groups else None]
