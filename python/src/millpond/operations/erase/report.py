"""What an erasure reports. Imports nothing that only an erasure needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was searched.

    files, raw_bytes: files, and their bytes after decompression.
    needles: how many different byte strings, of keys and of values, were looked for: 1,000 at most,
        and of each the first 16 KiB.
    elsewhere: files in which such bytes are a part of rows with other keys, and how many of these
        strings are in each.
    unread: files of other operators that are damaged.
    """

    files: int
    raw_bytes: int
    needles: int
    elsewhere: tuple[tuple[str, int], ...]
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedPlace:
    """What was erased from one place, or with a dry run would be.

    rows: of the newest batch. entries: in files: of all batches, replaced values and deletions too.
    batches: those whose state is retained. stores: (operator, partition, name) of those written
    anew. files: that are written; deleted: that go.
    digest_before, digest_after: SHA-256 over names, sizes and check sums of the files of these
    stores. proof: None: a dry run, or a canonical savepoint without the key.
    """

    path: str
    operator: int
    rows: int
    entries: int
    batches: tuple[int, ...]
    stores: tuple[tuple[int, int, str], ...]
    files: int
    deleted: int
    digest_before: str
    digest_after: str
    proof: Proof | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseReport:
    """What `erase` did, or with `dry_run` would do. `to_json` is the contract of `--json`."""

    columns: tuple[str, ...]  # of the key; its values are in no report
    dry_run: bool
    places: tuple[ErasedPlace, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
