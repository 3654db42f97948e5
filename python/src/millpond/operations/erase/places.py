"""The places from which a key is erased: a stopped query's Spark checkpoint, or a savepoint."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace

from millpond.errors import ErrorKind, InvalidInputError, MillpondError, error
from millpond.format import layout, spark_names
from millpond.format.format_file import decode_format, encode_format
from millpond.model.ids import StoreId, VersionId
from millpond.operations.erase.journal import Journal, decode_journal, encode_journal
from millpond.operations.erase.matching import Matcher
from millpond.operations.erase.plan import Rewrite, rewrites_of, uncounted
from millpond.operations.erase.retained import retained_images
from millpond.operations.erase.run_on import delete_replaced, has_run_on
from millpond.operations.erase.scan import Found, described, find
from millpond.operations.erase.tables import as_replaced
from millpond.operations.erase.write import count
from millpond.operations.repartition.folder import remove_leftovers
from millpond.query.from_checkpoint import spark_image
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import Image
from millpond.query.index import (
    CANONICAL,
    FileEntry,
    SavepointIndex,
    encode_index,
    read_index,
    refuse_links,
)
from millpond.spark.commands import Hold, at_work
from millpond.spark.metadata import newest_commit
from millpond.state.join_columns import join_columns
from millpond.state.selection import Opened, choices_of
from millpond.storage import Storage, open_checkpoint, root_of
from millpond.storage.owner import check_owner, claim
from millpond.storage.sums import size_and_crc32
from millpond.store.collection.announcements import announce_erasure
from millpond.store.files import Listing, StoreFiles, list_stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place, as it is before anything changes.

    index: of a savepoint; None: a Spark checkpoint. images: of the retained batches, ascending; all
    but the newest without texts and files. journal: of an erasure that did not end. run_on: the
    query has run on since that was planned: it is planned anew. hold: of a place that is to change.
    """

    storage: Storage
    path: str
    index: SavepointIndex | None
    images: tuple[Image, ...]
    journal: Journal | None
    run_on: bool = False
    hold: Hold | None = None

    @property
    def planned(self) -> Journal | None:
        """The journal by which to go on."""
        return None if self.run_on else self.journal

    @property
    def image(self) -> Image:
        """The newest."""
        return self.images[-1]

    @property
    def spark_format(self) -> int:
        return self.image.spark_checkpoint_format

    @property
    def canonical(self) -> bool:
        return self.index is not None and self.index.format == CANONICAL


def open_place(
    path: str | os.PathLike[str],
    until_end: ExitStack,
    *,
    dry_run: bool,
    operator: int | str | None = None,
) -> Place:
    """Open a place to erase from.

    Args:
        operator: as for `matcher_of`.
        until_end: so long the place is held.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, STATE_OWNED; OPERATOR_UNKNOWN, as `matcher_of`.
        ConflictError: QUERY_RUNNING, COMMAND_RUNNING, RESCALE_UNFINISHED.
        NotFoundError: BATCH_NOT_COMMITTED.
        FormatError: a retained batch is damaged: what cannot be read cannot be written anew.
            UNSAFE_PATH: a file or a folder of a savepoint is a symbolic link.
    """
    root = root_of(path)
    storage = open_checkpoint(root)
    is_savepoint = _index(storage, root) is not None
    if not is_savepoint:
        check_owner(storage, root)
    hold = None
    if not dry_run:
        hold = until_end.enter_context(at_work(storage, root, "state erase"))
        if not is_savepoint:
            claim(storage, root)
            remove_leftovers(storage)  # of a rescale that was killed: rows, the key's among them
    index = _index(storage, root)  # another erasure may have ended since
    if index is not None:
        refuse_links(storage)  # what lies behind one is not the savepoint's, and is not to change
        journal = _journal(storage, _marked_index(storage, root), dry_run)
        if journal is not None and index.format == CANONICAL:
            index = as_replaced(storage, index, journal)
        image = savepoint_image(storage, index) if journal is None else _texts(storage, index)
        return Place(
            storage=storage, path=root, index=index, images=(image,), journal=journal, hold=hold
        )
    journal = _journal(storage, _marked_format(storage), dry_run)
    if journal is not None and (hold is None or not has_run_on(storage, journal)):
        images = [spark_image(storage, root, erasing=True)]
        return _checkpoint(storage, root, images, journal, hold)
    # A journal that is left names too little. The mark stays until all is erased by another one:
    # where changelogs were written anew, a row that was deleted may have come back.
    erasing = journal is not None
    if journal is not None:
        delete_replaced(storage, journal)
    wanted = operator if journal is None else journal.operator
    images = retained_images(storage, root, wanted, erasing=erasing)
    return _checkpoint(storage, root, images, journal, hold, run_on=erasing)


def _checkpoint(
    storage: Storage,
    root: str,
    images: Sequence[Image],
    journal: Journal | None,
    hold: Hold | None,
    *,
    run_on: bool = False,
) -> Place:
    return Place(
        storage=storage,
        path=root,
        index=None,
        images=tuple(images),
        journal=journal,
        run_on=run_on,
        hold=hold,
    )


def _index(storage: Storage, root: str) -> SavepointIndex | None:
    try:
        return read_index(storage, root, erasing=True)
    except InvalidInputError as e:
        if e.kind is not ErrorKind.NOT_A_SAVEPOINT:
            raise
        return None


def _marked_index(storage: Storage, root: str) -> bool:
    try:
        read_index(storage, root)
    except MillpondError as e:
        return e.kind is ErrorKind.ERASE_UNFINISHED
    return False


def _marked_format(storage: Storage) -> bool:
    try:
        decode_format(storage.read(layout.FORMAT_KEY))
    except MillpondError as e:
        return e.kind is ErrorKind.ERASE_UNFINISHED
    return False


def _journal(storage: Storage, marked: bool, dry_run: bool) -> Journal | None:
    """Return the journal of an erasure that did not end; None: nothing was changed yet."""
    if not marked:
        if not dry_run:
            storage.delete([layout.ERASE_JOURNAL_KEY])  # of one that was killed before it began
        return None
    return decode_journal(storage.read(layout.ERASE_JOURNAL_KEY))


def _texts(storage: Storage, index: SavepointIndex) -> Image:
    """Return the image of a savepoint that is half erased: Spark's files of its operators."""
    texts = {
        key: storage.read(key)
        for key in index.files
        if key == layout.FORMAT_KEY
        or (spark_names.is_of_operator(key) and layout.parse_key(key) is None)
    }
    return replace(index.image, texts=texts)


def matcher_of(place: Place, operator: int | str | None, key: Mapping[str, object]) -> Matcher:
    """Return what tells the rows of a key. Raises: as `Matcher`; InvalidInputError:
    OPERATOR_UNKNOWN: there is no such operator, or there are several to choose from.
    """
    if place.journal is not None:
        return Matcher(place.image, place.journal.operator, key, place.journal.shown)
    opened = Opened(storage=place.storage, place=place.path, image=place.image, index=place.index)
    number = opened.operator(operator).operator
    shown: dict[tuple[str, str], Mapping[str, str]] = {}
    for choice in choices_of(place.image, number):
        family = (choice.store, choice.schema.name)
        if names := join_columns(opened, number, *family):
            shown[family] = names
    return Matcher(place.image, number, key, shown)


def unfinished(place: Place, operator: int) -> list[str]:
    """Return the keys of files that killed processes were writing to an operator's stores."""
    if place.index is not None:
        return []
    return [
        info.key
        for store, listing in list_stores(place.storage).items()
        if store.operator == operator
        for info in listing.staging
    ]


def search(place: Place, matcher: Matcher, found: Found) -> set[StoreId]:
    """Return the stores of which a file has the key.

    Args:
        found: gets what is found of the key.
    Raises: as `find`.
    """
    storage = place.storage
    chosen: set[StoreId] = set()
    for store, listing in list_stores(storage).items():
        files = StoreFiles(storage, store, place.spark_format)
        files.refresh()
        if store.operator == matcher.operator and find(storage, files, listing, matcher, found):
            chosen.add(store)
    return chosen


def plan_place(place: Place, matcher: Matcher, job: str, found: Found) -> Journal:
    """Return what is to be done at a place whose state is in changelogs and SSTs.

    Args:
        found: gets what is found of the key.
    Raises: as `find`.
    """
    storage = place.storage
    chosen = search(place, matcher, found)
    if place.run_on and place.journal is not None:
        chosen |= {*place.journal.stores}  # what the query wrote since counts rows that are gone
    listed = {s: ls for s, ls in list_stores(storage).items() if s.operator == matcher.operator}
    _refuse_foreign(place, listed.values())
    stores = {store: StoreFiles(storage, store, place.spark_format) for store in listed}
    sources: dict[StoreId, frozenset[StoreId]] = {}
    for store, listing in listed.items():
        stores[store].refresh()
        others = described(stores[store], listing).others
        sources[store] = frozenset(replace(store, partition=other) for other in others)
    chosen = made_of(chosen, sources)
    now = {
        StoreId(operator.operator, one.partition, one.name)
        for operator in place.image.operators
        for one in operator.stores
    }
    targets = _targets(place, matcher.operator)
    rewrites: list[Rewrite] = []
    for store in sorted(chosen):
        planned = rewrites_of(stores[store], targets.get(store, []))
        counted, rows = count(storage, stores[store], planned, matcher)
        if store in now:  # else a rescale left it behind
            found.live += rows
        rewrites += map(uncounted, counted) if place.run_on else counted
    return Journal(
        job=job,
        operator=matcher.operator,
        shown=matcher.shown,
        created_ms=time.time_ns() // 1_000_000,
        stores=tuple(sorted(chosen)),
        rewrites=tuple(rewrites),
        tables={},
    )


def made_of(chosen: Set[StoreId], sources: Mapping[StoreId, Set[StoreId]]) -> set[StoreId]:
    """Return these stores, and all that a rescale put together of their files.

    A second rescale puts stores together of what the first one put together.

    Args:
        sources: by store, the stores of whose files its snapshots have some.
    """
    found: set[StoreId] = set()
    more = set(chosen)
    while more:
        found |= more
        more = {store for store, of in sources.items() if store not in found and of & found}
    return found


def replaced(place: Place, journal: Journal) -> list[str]:
    """Return the keys of files that the new changelogs replace, in the order in which they go.

    Manifests come first: without them nothing names the SSTs. A snapshot that was published since
    the erasure was planned is among them. A changelog above the newest batch is not: a query that
    nobody sees may commit it at any moment.
    """
    new = {rewrite.key(place.spark_format) for rewrite in journal.rewrites}
    newest = journal.newest if place.index is None else {}
    gone: list[list[str]] = [[], []]
    listed = list_stores(place.storage)
    for store in journal.stores:
        listing = listed.get(store, Listing())
        gone[0] += [info.key for info in listing.manifests.values()]
        last = newest.get(store)
        old = [
            info
            for version, info in listing.changelogs.items()
            if last is None or version.version <= last
        ]
        others = (*old, *listing.ssts.values(), *listing.staging)
        gone[1] += [info.key for info in others if info.key not in new]
    return gone[0] + gone[1]


def _targets(place: Place, operator: int) -> dict[StoreId, list[VersionId]]:
    """Return the retained versions of each store of an operator, ascending."""
    found: dict[StoreId, dict[int, VersionId]] = {}
    for image in place.images:
        spark_format = image.spark_checkpoint_format
        for one in (s for op in image.operators if op.operator == operator for s in op.stores):
            versions = found.setdefault(StoreId(operator, one.partition, one.name), {})
            versions[one.version] = one.version_id(spark_format)
    return {store: [by[number] for number in sorted(by)] for store, by in found.items()}


def _refuse_foreign(place: Place, listed: Iterable[Listing]) -> None:
    names = sorted({name for listing in listed for name in listing.foreign})
    if names:
        raise InvalidInputError(
            f"{place.path} still has files of Spark's own store, {names[0]} is one: they may hold"
            " the key",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Delete these files if you need no way back to Spark's store, then erase.",
        )


def begin(place: Place, journal: Journal) -> None:
    """Write the journal, and mark the place: from now on only an erasure accepts it.

    Executors that have not noticed the end of the query take back snapshots of erased versions.

    Raises: ConflictError: QUERY_RUNNING: the query was started since the place was opened. Then
        the place has the mark only if it had it before.
    """
    storage = place.storage
    newest = max(journal.newest.values(), default=0)
    storage.put_bytes(layout.ERASE_JOURNAL_KEY, encode_journal(journal))
    if place.index is None:
        announce_erasure(storage, journal.operator, newest)
    if place.index is not None:
        storage.put_bytes(layout.SAVEPOINT_KEY, encode_index(place.index, erasing=True))
        return
    text = storage.read(layout.FORMAT_KEY)
    value = decode_format(text, erasing=True)
    value = value.with_erased(journal.operator, newest)
    storage.put_bytes(layout.FORMAT_KEY, encode_format(value, erasing=True))
    # A start that comes later meets the mark. One that came before has a heartbeat, or committed.
    try:
        refuse_started(place)
    except BaseException:
        if place.journal is None:  # else it has the mark of an earlier erasure
            storage.put_bytes(layout.FORMAT_KEY, text)
            storage.delete([layout.ERASE_JOURNAL_KEY])
        raise


def refuse_started(place: Place) -> None:
    """Raise ConflictError (QUERY_RUNNING) if the query was started since the place was opened, and
    runs or has committed a batch.
    """
    assert place.hold is not None  # of every place that is to change
    place.hold.refuse_running()
    newest = newest_commit(place.storage)
    if place.index is None and newest > place.image.batch:
        raise query_runs(place, f"batch {newest} was committed meanwhile")


def query_runs(place: Place, what: str) -> MillpondError:
    """Return the error of an erasure that has met a batch."""
    return error(
        ErrorKind.QUERY_RUNNING,
        f"{place.path}: {what}",
        hint="Stop the query, then erase again.",
    )


def index_after(place: Place, journal: Journal) -> SavepointIndex:
    """Return the index of a savepoint whose changelogs are written anew."""
    index = place.index
    assert index is not None
    stores = set(journal.stores)
    files = {
        key: entry
        for key, entry in index.files.items()
        if (parsed := layout.parse_key(key)) is None or parsed.store not in stores
    }
    keys: dict[StoreId, tuple[int, int]] = {}
    for rewrite in journal.rewrites:
        key = rewrite.key(place.spark_format)
        size_bytes, crc32 = size_and_crc32(place.storage, key)
        files[key] = FileEntry(key=key, size_bytes=size_bytes, crc32=crc32)
        keys[rewrite.store] = rewrite.keys, size_bytes
    operators = tuple(
        replace(
            operator,
            stores=tuple(
                one
                if (now := keys.get(StoreId(operator.operator, one.partition, one.name))) is None
                else replace(one, keys=now[0], size_bytes=now[1])
                for one in operator.stores
            ),
        )
        for operator in index.image.operators
    )
    return replace(index, files=files, image=replace(index.image, operators=operators))


def end(place: Place, index: SavepointIndex | None) -> None:
    """Take the mark away, and the journal.

    Args:
        index: of a savepoint, as it is now.
    """
    storage = place.storage
    if index is not None:
        storage.put_bytes(layout.SAVEPOINT_KEY, encode_index(index))
    else:
        value = decode_format(storage.read(layout.FORMAT_KEY), erasing=True)
        storage.put_bytes(layout.FORMAT_KEY, encode_format(value))
    storage.delete([layout.ERASE_JOURNAL_KEY])
