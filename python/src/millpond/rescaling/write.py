"""Carry out a rescale, or take back what an interrupted one left: files in an order in which every moment is safe.

    journal, offsets/M, pins, manifests, operator metadata, commits/M, journal removed

With `offsets/M` there and `commits/M` not, Spark refuses to start the query; `commits/M` is the switch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from millpond import layout
from millpond.errors import NotFoundError
from millpond.rescaling.journal import Journal, decode_journal, encode_journal
from millpond.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What a rescale writes. `files`: key -> content of all that lies between the offset log's entry and the commit log's."""

    current: int
    partitions: int
    batch: int
    offsets: bytes
    files: Mapping[str, bytes]
    commit: bytes
    created_ms: int

    @property
    def total_bytes(self) -> int:
        """Size of all of it."""
        return len(self.offsets) + len(self.commit) + sum(len(content) for content in self.files.values())


def carry_out(storage: Storage, writing: Writing) -> None:
    """Write everything. Raises: ConflictError: OBJECT_EXISTS: somebody else rescales, or runs the query, at this moment."""
    journal = Journal(
        current=writing.current,
        partitions=writing.partitions,
        batch=writing.batch,
        offsets_crc32=zlib.crc32(writing.offsets),
        keys=tuple(writing.files),
        created_ms=writing.created_ms,
    )
    storage.put_bytes(layout.RESCALE_JOURNAL_KEY, encode_journal(journal), if_absent=True)
    _put_log(storage, layout.offsets_key(writing.batch), writing.offsets)
    for key, content in writing.files.items():
        storage.put_bytes(key, content)
    _put_log(storage, layout.commits_key(writing.batch), writing.commit)
    storage.delete([layout.RESCALE_JOURNAL_KEY])


def _put_log(storage: Storage, key: str, content: bytes) -> None:
    # without a sidecar Hadoop reads the file unchecked; one that is left of another file would make it fail
    storage.delete([layout.crc_key(key)])
    storage.put_bytes(key, content, if_absent=True)


def read_journal(storage: Storage) -> Journal | None:
    """Return the journal of an interrupted rescale, or None."""
    try:
        return decode_journal(storage.read(layout.RESCALE_JOURNAL_KEY))
    except NotFoundError:
        return None


def clear(storage: Storage, journal: Journal) -> bool:
    """Bring an interrupted rescale to an end: nothing of it is left, or, if it had switched over already, all.

    Return whether it had switched over. May be repeated after a failure.
    """
    ours = _crc32(storage, layout.offsets_key(journal.batch)) == journal.offsets_crc32
    # An entry of the offset log that is not ours is of Spark, which runs on since: then nothing more of ours was written.
    done = ours and _crc32(storage, layout.commits_key(journal.batch)) is not None
    if ours and not done:
        storage.delete(journal.keys)
        storage.delete([layout.offsets_key(journal.batch), layout.crc_key(layout.offsets_key(journal.batch))])
    storage.delete([layout.RESCALE_JOURNAL_KEY])
    return done


def _crc32(storage: Storage, key: str) -> int | None:
    try:
        return zlib.crc32(storage.read(key))
    except NotFoundError:
        return None


def pin(changelogs: list[str], created_ms: int) -> bytes:
    """Return the content of a pin that keeps these changelogs."""
    body = {"changelogs": sorted(set(changelogs)), "manifests": [], "created_ms": created_ms, "reason": "rescale"}
    return json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n"
