"""What a query does while a key is erased. One that has no heartbeat is not seen, and an executor
may not have noticed the end of its query.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.errors import FormatError, NotFoundError
from millpond.format import layout
from millpond.model.ids import StoreId
from millpond.operations.erase.journal import Journal
from millpond.operations.erase.matching import Matcher
from millpond.operations.erase.places import Place, query_runs
from millpond.operations.erase.plan import Rewrite
from millpond.operations.erase.run_on import has_run_on
from millpond.operations.erase.write import records_of_key
from millpond.spark.metadata import newest_commit
from millpond.store.files import StoreFiles, list_stores
from millpond.store.restore.plan import checked_header


def uncommitted(place: Place, journal: Journal) -> list[Rewrite]:
    """Return how the operator's changelogs above the newest batch are written anew: without the
    key. A killed query left them, or one that runs unseen is about to commit them.
    """
    if place.index is not None:
        return []
    base = {rewrite.store: rewrite.base for rewrite in journal.rewrites}
    newest = journal.newest
    return [
        Rewrite(store=store, version=version, whole=False, base=base.get(store, 0))
        for store, listing in list_stores(place.storage).items()
        if store.operator == journal.operator
        and (store in newest or store not in journal.stores)  # else all of it goes
        for version in listing.changelogs
        if version.version > newest.get(store, place.image.batch + 1)
    ]


def sorted_out(
    place: Place, late: Sequence[Rewrite], matcher: Matcher
) -> tuple[list[Rewrite], list[str]]:
    """Look through changelogs above the newest batch.

    Returns: those that have an entry of the key; the keys of those that are not what their names
        say, which no query can ever commit.
    """
    known: dict[StoreId, StoreFiles] = {}
    holding, strays = [], []
    for one in late:
        if one.store not in known:
            known[one.store] = StoreFiles(place.storage, one.store, place.spark_format)
            known[one.store].refresh()
        files, key = known[one.store], one.key(place.spark_format)
        try:
            checked_header(files, one.version)
            if any(True for _ in records_of_key(place.storage, files, key, matcher)):
                holding.append(one)
        except NotFoundError:
            pass  # it is gone by now
        except FormatError:
            strays.append(key)
    return holding, strays


def refuse_run_on(place: Place, journal: Journal) -> None:
    """Raise ConflictError (QUERY_RUNNING) if the query has run on since the erasure was planned.
    To be called before anything is deleted.
    """
    if place.index is None and has_run_on(place.storage, journal):
        raise query_runs(place, "a batch was committed while the key was erased")


def refuse_written(place: Place, key: str) -> None:
    """Raise ConflictError (QUERY_RUNNING) if a file that has the key can be one that a query has
    written since the erasure was planned.
    """
    file = layout.file_of(key)
    newest = place.image.batch + 1
    is_new = isinstance(file, layout.ChangelogFile) and file.version.version > newest
    if place.index is None and (is_new or newest_commit(place.storage) >= newest):
        raise query_runs(place, "a query has written the key again while it was erased")
