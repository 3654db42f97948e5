"""Carries out a rescale, or takes back what an interrupted one left.

Files are written in this order, in which every moment is safe:

    journal, offsets/M, the entry of a batch that is left out, stale files removed, pins, manifests
    or changelogs, operator metadata, format.json, entries of the file sink's log, commits/M,
    journal removed

Spark refuses to start the query while `offsets/M` is there and `commits/M` is not. `commits/M` is
the switch.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond.errors import ConflictError, ErrorKind, MillpondError, error
from millpond.format import layout, spark_names
from millpond.format.rescale_journal import Journal, encode_journal
from millpond.spark.commands import Hold
from millpond.spark.log_files import log_crc32, put_log
from millpond.spark.metadata import logged_batches, newest_commit, read_spark_metadata
from millpond.spark.sinks.keeping import SinkEntries, crc32_of, take_back
from millpond.storage import Storage, open_storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What a rescale writes.

    files: key -> content, of all that is written between the entries of the offset log and the
    commit log.
    made: key -> local file that is put there too.
    stale: keys of files that no committed version has. They are deleted first. Nobody needs them,
    whether the rescale ends or is taken back. Beside a new file, one would be taken for a part of
    the state.
    format, format_before: `millpond/format.json` after and before, if it changes.
    left_out, left_out_before: the entry of the offset log of the batch before `batch`, after and
    before, if that batch is left out.
    sink: entries of the log of the query's file sink. A rescale that is taken back takes back those
    whose number no batch had before.
    """

    current: int
    partitions: int
    batch: int
    offsets: bytes
    files: Mapping[str, bytes]
    commit: bytes
    created_ms: int
    made: Mapping[str, str] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    format: bytes | None = None
    format_before: bytes | None = None
    left_out: bytes | None = None
    left_out_before: bytes | None = None
    sink: SinkEntries | None = None
    first_unused: int = 0  # the first number that no batch has committed

    @property
    def total_bytes(self) -> int:
        """Size of all of it."""
        texts = (self.offsets, self.commit, self.format or b"", *self.files.values())
        return sum(map(len, texts)) + sum(map(os.path.getsize, self.made.values()))


def carry_out(storage: Storage, writing: Writing, hold: Hold) -> None:
    """Write everything. If the storage fails, take back what was written.

    Raises:
        ConflictError: OBJECT_EXISTS: somebody else runs the query at this moment; QUERY_RUNNING: it
            has run on since the state was read; COMMAND_RUNNING: another command took over.
        UnavailableError: the storage fails. If taking back fails too, the journal stays.
    """
    journal = Journal(
        current=writing.current,
        partitions=writing.partitions,
        batch=writing.batch,
        offsets_crc32=zlib.crc32(writing.offsets),
        keys=(*writing.made, *writing.files),
        created_ms=writing.created_ms,
        format_before=writing.format_before,
        left_out_before=writing.left_out_before,
        sink=writing.sink.root if writing.sink is not None else None,
        sink_sums=_sink_sums(writing),
    )
    hold.check()
    storage.put_bytes(layout.RESCALE_JOURNAL_KEY, encode_journal(journal), if_absent=True)
    has_number = False
    try:
        _take_number(storage, writing, hold)
        has_number = True
        _write_all(storage, writing, hold)
    except MillpondError as e:
        try:
            hold.check()
            done = clear(storage, journal, hold, only_entry=not has_number)
        except MillpondError as again:
            raise e from again
        if not done:
            raise
        return  # the last step was done, and only its answer was lost
    storage.delete([layout.RESCALE_JOURNAL_KEY])


def _take_number(storage: Storage, writing: Writing, hold: Hold) -> None:
    """Write the entry of the offset log. Raise ConflictError (QUERY_RUNNING) if a query runs.

    A query writes its heartbeat before it reads its logs. So one that is not seen after this entry
    was written meets it.
    """
    put_log(storage, spark_names.offsets_key(writing.batch), writing.offsets)
    # Spark deletes old entries of its logs. So a query that ran on may be past this number.
    if _ran_on(storage, writing.batch):
        raise ConflictError(
            f"the query has run on since its state was read, past batch {writing.batch}",
            kind=ErrorKind.QUERY_RUNNING,
        )
    hold.refuse_running()


def _write_all(storage: Storage, writing: Writing, hold: Hold) -> None:
    if writing.left_out is not None:
        _refuse_finished(storage, writing, hold)
        put_log(
            storage, spark_names.offsets_key(writing.batch - 1), writing.left_out, if_absent=False
        )
    storage.delete(writing.stale)
    for key, path in writing.made.items():
        hold.check()
        storage.put_file(key, path, link=True)
    for key, content in writing.files.items():
        hold.check()
        if spark_names.is_sparks(key):
            put_log(storage, key, content, if_absent=False)
        else:
            storage.put_bytes(key, content)
    if writing.format is not None:
        storage.put_bytes(layout.FORMAT_KEY, writing.format)
    if writing.sink is not None:
        writing.sink.write()
    hold.check()
    put_log(storage, spark_names.commits_key(writing.batch), writing.commit)


def _refuse_finished(storage: Storage, writing: Writing, hold: Hold) -> None:
    """Raise ConflictError (QUERY_RUNNING) if the query has done the batch that is to be left out
    since the state was read.
    """
    newest = newest_commit(storage)
    if newest >= writing.first_unused:
        raise error(
            ErrorKind.QUERY_RUNNING,
            f"{hold.root}: batch {newest}, which was to be left out, was committed meanwhile",
            hint="Stop the query, then rescale again: there is no batch to be left out any more.",
        )


def _sink_sums(writing: Writing) -> dict[str, int]:
    if writing.sink is None:
        return {}
    return crc32_of(writing.sink, range(writing.first_unused, writing.batch + 1))


def clear(storage: Storage, journal: Journal, hold: Hold, *, only_entry: bool = False) -> bool:
    """Bring an interrupted rescale to an end. Return whether it had switched over.

    If it had, all of it stays. If not, nothing of it is left. May be repeated after a failure.

    Args:
        hold: of the command that does it.
        only_entry: the caller has written nothing after the entry of the offset log, so that files
            of the journal's names are a query's. One in real-time mode writes its entry last.
    Raises: ConflictError: COMMAND_RUNNING: another command took over.
    """
    entry = log_crc32(storage, spark_names.offsets_key(journal.batch))
    # An entry of the offset log that is not ours is Spark's: the query has run on since. Then
    # nothing more of ours was written.
    ours = entry == journal.offsets_crc32 or (entry is None and _was_begun(storage, journal))
    done = ours and log_crc32(storage, spark_names.commits_key(journal.batch)) is not None
    if entry is None and _ran_on(storage, journal.batch):
        # Spark deletes old entries, of both logs. Every later one tells the number of partitions.
        spark = read_spark_metadata(storage, batches=(), operators=())
        done = spark.partitions == journal.partitions
    if ours and not done:
        # The query may have run on before that entry was written: then there is no more of ours,
        # and files of these names may be the query's.
        if not only_entry and not _ran_on(storage, journal.batch):
            _take_back(storage, journal, hold)
        entry_key = spark_names.offsets_key(journal.batch)
        hold.check()
        storage.delete([entry_key, spark_names.crc_key(entry_key)])
    hold.check()
    storage.delete([layout.RESCALE_JOURNAL_KEY])
    return done


def _take_back(storage: Storage, journal: Journal, hold: Hold) -> None:
    """Take back all but the entry of the offset log. Args: as for `clear`."""
    hold.check()
    left_out = spark_names.offsets_key(journal.batch - 1)
    before = journal.left_out_before
    if before is not None and log_crc32(storage, left_out) == zlib.crc32(before):
        # Nothing is there yet, or any more: this entry is changed first, and changed back last. If
        # that batch has an entry in the commit log, it is the query's.
        return
    if journal.sink is not None:
        # First: a query that ran now would believe that a batch whose number is in the sink's log
        # is written.
        take_back(open_storage(journal.sink), journal.sink_sums)
        hold.check()
    if journal.format_before is not None:
        storage.put_bytes(layout.FORMAT_KEY, journal.format_before)
    hold.check()
    storage.delete(journal.keys)
    if before is not None:
        hold.check()
        put_log(storage, left_out, before, if_absent=False)


def _was_begun(storage: Storage, journal: Journal) -> bool:
    """Whether the entry of the offset log was written, although it is not there.

    Then somebody removed it, or taking back was interrupted. The rescale writes the state after
    that entry, so a file of the state proves it. If the query has run on since, Spark's own entry
    is there, or a later one.
    """
    if _ran_on(storage, journal.batch):
        return False
    state = [
        key
        for key in journal.keys
        if layout.parse_key(key) is not None or layout.parse_rescale_pin(key) is not None
    ]
    return any(log_crc32(storage, key) is not None for key in state)


def _ran_on(storage: Storage, batch: int) -> bool:
    """Whether Spark has logged a later batch."""
    return any(one > batch for one in logged_batches(storage, spark_names.OFFSETS_DIR))


def pin(changelogs: list[str], created_ms: int) -> bytes:
    """Return the content of a pin that keeps these changelogs."""
    body = {
        "changelogs": sorted(set(changelogs)),
        "manifests": [],
        "created_ms": created_ms,
        "reason": "rescale",
    }
    return json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n"
