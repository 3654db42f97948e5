"""Changelog: the durable file of what one micro-batch changed in one store.

Its layout, little-endian:

    header   "MPCL"  u16 format  u16 flags  u32 json_bytes  json  u32 crc32(all before)
    block*   u32 raw_bytes (>0)  u32 stored_bytes  u32 records  u8 codec  u8[3]=0  u32 crc32(the 16
             bytes before + stored)  stored
    footer   u32 0  u32 "MPCE"  u64 records  u64 puts  u64 raw_bytes  u32 crc32(the 32 bytes before)

`parts` declares header, records and footer; `reader` and `writer` each know their half. Source:
docs/reference/format.md.
"""

from millpond.format.changelog.parts import (
    DEFAULT_BLOCK_BYTES,
    END_MAGIC,
    FORMAT,
    MAGIC,
    REPEATS,
    ChangelogFooter,
    ChangelogHeader,
    Op,
    Record,
)
from millpond.format.changelog.reader import (
    ChangelogReader,
    Puts,
    has_repeats,
    parse_puts,
    parse_records,
    read_header,
)
from millpond.format.changelog.writer import ChangelogWriter, Sink

__all__ = [
    "DEFAULT_BLOCK_BYTES",
    "END_MAGIC",
    "FORMAT",
    "MAGIC",
    "REPEATS",
    "ChangelogFooter",
    "ChangelogHeader",
    "ChangelogReader",
    "ChangelogWriter",
    "Op",
    "Puts",
    "Record",
    "Sink",
    "has_repeats",
    "parse_puts",
    "parse_records",
    "read_header",
]
