"""An erasure that did not end, and beside which the query has run on."""

from __future__ import annotations

from millpond.operations.erase.journal import Journal
from millpond.spark.metadata import newest_commit
from millpond.storage import Storage
from millpond.store.files import Listing, list_stores, read_changelog_header


def has_run_on(storage: Storage, journal: Journal) -> bool:
    """Whether the query has committed versions since the erasure was planned: the journal has none
    of them, and nothing else has their rows. So does a query that had no heartbeat when the place
    was marked, or one that was seen then by an erasure that was killed.
    """
    committed = newest_commit(storage) + 1
    listed = list_stores(storage)
    return any(
        last < version.version <= committed
        for store, last in journal.newest.items()
        for version in listed.get(store, Listing()).changelogs
    )


def delete_replaced(storage: Storage, journal: Journal) -> None:
    """Delete the snapshots beside which a changelog has all rows of their versions, as the erasure
    wrote it.

    A rescale puts a snapshot together of changelogs of other versions and partitions. The erasure
    may have written these anew, too: then nobody can read the snapshot any more.

    Raises: FormatError: such a changelog is damaged.
    """
    listed = list_stores(storage)
    gone = []
    for rewrite in journal.rewrites:
        listing = listed.get(rewrite.store, Listing())
        for version, manifest in listing.manifests.items() if rewrite.whole else ():
            changelog = listing.changelogs.get(version)
            if (
                version.version == rewrite.version.version
                and changelog is not None
                and read_changelog_header(storage, changelog.key).empty_base
            ):
                gone.append(manifest.key)
    storage.delete(gone)
