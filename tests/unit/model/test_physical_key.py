"""A physical key is taken apart as it was put together."""

from __future__ import annotations

import pytest

from millpond.model.json_fields import ColumnFamily
from millpond.model.physical_key import FAMILY, PHYSICAL_PREFIX_BYTES, RESERVED_SLOT, around, bare


@pytest.mark.parametrize("kind", ["", "point", "prefix", "range", "time-first", "time-last"])
@pytest.mark.parametrize("slot", [0, 513])
@pytest.mark.parametrize("key", [b"", b"key"])
def test_the_parts_of_a_key(kind: str, slot: int, key: bytes) -> None:
    family = ColumnFamily("it", 258, kind)
    lead, end = around(family, slot)
    physical = lead + key + end
    assert bare(physical, family) == key
    assert family.slot_of(physical) == slot
    assert physical[FAMILY] == b"\1\2" and len(lead) == PHYSICAL_PREFIX_BYTES
    spans = kind in ("range", "time-first")
    assert int.from_bytes(physical[:2], "big") == (RESERVED_SLOT if spans else slot)
