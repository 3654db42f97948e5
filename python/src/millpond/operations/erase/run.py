"""Runs an erasure: opens all places, plans, writes, proves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from millpond.errors import ErrorKind, InvalidInputError, error
from millpond.local.scratch import scratch_directory
from millpond.operations.erase import tables
from millpond.operations.erase.journal import Journal, job_of
from millpond.operations.erase.late import refuse_run_on, sorted_out, uncommitted
from millpond.operations.erase.matching import Matcher
from millpond.operations.erase.places import (
    Place,
    begin,
    end,
    index_after,
    matcher_of,
    open_place,
    plan_place,
    refuse_started,
    replaced,
    search,
    unfinished,
)
from millpond.operations.erase.proof import Search, check_gone, digest, prove
from millpond.operations.erase.report import ErasedPlace, EraseReport, Proof
from millpond.operations.erase.scan import Found
from millpond.operations.erase.write import rewrite_all
from millpond.query.index import SavepointIndex
from millpond.state.canonical import CanonicalRows
from millpond.storage import root_of
from millpond.storage.same_place import one_name

Progress = Callable[[int, int], None]


def erase(
    paths: Sequence[str | os.PathLike[str]],
    key: Mapping[str, object],
    operator: int | str | None,
    *,
    dry_run: bool,
    progress: Progress | None = None,
) -> EraseReport:
    """Erase a key. Args, Raises: as `millpond.erase`."""
    if not paths:
        raise InvalidInputError(
            "name a Spark checkpoint or a savepoint",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name all places from which the key is to go.",
        )
    with ExitStack() as until_end:
        # All are read before any is changed. A place is held once, however often it is named.
        roots: dict[str, str] = {}
        for root in map(root_of, paths):
            roots.setdefault(one_name(root), root)
        opened = [
            open_place(root, until_end, dry_run=dry_run, operator=operator)
            for root in roots.values()
        ]
        work = []
        for place in opened:
            matcher = matcher_of(place, operator, key)
            job = job_of(matcher.operator, key)
            if place.journal is not None and (dry_run or place.journal.job != job):
                raise error(
                    ErrorKind.ERASE_UNFINISHED,
                    f"{place.path}: the erasure of another key was interrupted"
                    if not dry_run
                    else f"{place.path}: an erasure was interrupted",
                )
            work.append((place, matcher, job))
        done = [_erase(*one, dry_run, progress) for one in work]
    return EraseReport(columns=tuple(key), dry_run=dry_run, places=tuple(done))


def _erase(
    place: Place, matcher: Matcher, job: str, dry_run: bool, progress: Progress | None
) -> ErasedPlace:
    if place.canonical:
        return _erase_tables(place, matcher, job, dry_run)
    found = Found()
    journal = place.planned
    if journal is None:
        journal = plan_place(place, matcher, job, found)
    else:
        search(place, matcher, found)
    stores = journal.stores
    before = after = digest(place.storage, stores)
    deleted = replaced(place, journal)
    proof = None
    if not dry_run:
        _check(place)
        if journal.stores:
            if place.planned is None:
                begin(place, journal)
            _check(place)
            # They may hold the key, and nobody can read them. No query runs that writes them.
            place.storage.delete(unfinished(place, matcher.operator))

            def written(done: int, total: int) -> None:
                _check(place)
                if progress is not None:
                    progress(done, total)

            rewrite_all(place.storage, place.spark_format, journal.rewrites, matcher, written)
            index = index_after(place, journal) if place.index is not None else None
            # What the query has written since, as another command let it, has to stay.
            _check(place)
            refuse_run_on(place, journal)
            late = uncommitted(place, journal)
            holding, strays = sorted_out(place, late, matcher)
            rewrite_all(place.storage, place.spark_format, holding, matcher)
            _check(place)
            deleted = replaced(place, journal) + strays
            place.storage.delete(deleted)
            after = digest(place.storage, stores)
            proof = prove(place, journal, late, matcher, found)
            refuse_run_on(place, journal)
            _check(place)
            # An executor that has died since may have published a snapshot, and not taken it back.
            place.storage.delete(replaced(place, journal))
            refuse_run_on(place, journal)
            end(place, index)
        else:
            left = unfinished(place, matcher.operator)  # first: one that starts later writes others
            refuse_started(place)
            _check(place)
            place.storage.delete(left)
            proof = prove(place, journal, (), matcher, found)
            refuse_started(place)  # what it wrote since may have the key
    return ErasedPlace(
        path=place.path,
        operator=matcher.operator,
        rows=found.live,
        entries=found.rows,
        batches=tuple(image.batch for image in place.images),
        stores=tuple((s.operator, s.partition, s.name) for s in stores),
        files=len(journal.rewrites),
        deleted=len(deleted),
        digest_before=before,
        digest_after=after,
        proof=proof,
    )


def _check(place: Place) -> None:
    """Raise ConflictError (COMMAND_RUNNING) if another command took the place over."""
    if place.hold is not None:
        place.hold.check()


def _erase_tables(place: Place, matcher: Matcher, job: str, dry_run: bool) -> ErasedPlace:
    index, storage = place.index, place.storage
    assert index is not None
    found = Found()
    with scratch_directory("erase") as directory:
        new = tables.plan_tables(
            storage, index, place.image, matcher, job, found, os.path.join(directory, "tables")
        )
        journal = new.journal if place.journal is None else _joined(place.journal, new.journal)
        changed = {*new.paths, *new.journal.deletes}
        stores = {table.store for table in index.tables if table.key in changed}
        proof = None
        if not dry_run and (changed or place.journal is not None):
            _check(place)
            begin(place, journal)
            for key, path in new.paths.items():
                _check(place)
                storage.put_file(key, path)
            _check(place)
            storage.delete(journal.deletes)
            proof = _prove_tables(place, new.index, matcher, found)
            _check(place)
            end(place, new.index)
    return ErasedPlace(
        path=place.path,
        operator=matcher.operator,
        rows=found.live,
        entries=found.rows,
        batches=(place.image.batch,),
        stores=tuple(sorted((s.operator, s.partition, s.name) for s in stores)),
        files=len(new.paths),
        deleted=len(new.journal.deletes),
        digest_before=_sums(index),
        digest_after=_sums(index if dry_run else new.index),
        proof=proof,
    )


def _joined(before: Journal, now: Journal) -> Journal:
    """Return the journal of a run that goes on where another one ended."""
    return replace(
        now,
        deletes=tuple(sorted({*before.deletes, *now.deletes})),
        tables={**before.tables, **now.tables},
    )


def _prove_tables(place: Place, index: SavepointIndex, matcher: Matcher, found: Found) -> Proof:
    """Read all tables of a canonical savepoint. No row of the operator may have the key.

    Raises: InternalError: one has. FormatError: a table is damaged.
    """
    search = Search(found)
    for table in index.tables:
        if table.key is None:
            continue
        search.files += 1
        for rows in CanonicalRows(place.storage, index).table_rows(table):
            for raw in (*rows.keys, *rows.values):
                search.look(table.key, raw)
            if table.store.operator == matcher.operator:
                check_gone(table.key, matcher.mask(table.store.name, table.family, rows.keys))
    return search.proof()


def _sums(index: SavepointIndex) -> str:
    """Return a SHA-256 over names, sizes and check sums of all tables."""
    names = [table.key for table in index.tables if table.key is not None]
    entries = [index.files[name] for name in sorted(names)]
    lines = [f"{one.key} {one.size_bytes} {one.crc32:08x}\n" for one in entries]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
