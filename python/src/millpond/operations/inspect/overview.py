"""Shows what a Spark checkpoint holds: batches, operators, partitions, versions, snapshots, sizes,
key groups.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnsupportedError,
)
from millpond.format import layout
from millpond.format.changelog import ChangelogHeader
from millpond.format.manifest import Manifest, decode_manifest
from millpond.model.ids import StoreId, VersionId
from millpond.operations.inspect.cost import StoreCost, Tariff, store_cost, sum_of
from millpond.operations.inspect.logs import problems_of_claim, problems_of_rescale
from millpond.operations.notebook import NUMBER, TEXT, Notebook, Sheet, Table, Value, counted
from millpond.query.survey import Survey, survey
from millpond.spark.heartbeats import read_asked
from millpond.storage import Storage
from millpond.store.files import Listing, read_changelog_header


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotView:
    """One manifest."""

    version: int
    id: str
    manifest: str  # file name
    ssts: int
    bytes: int  # of all its SSTs, shared ones included
    keys: int  # -1: not counted
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """One store."""

    operator: int
    partition: int
    name: str
    oldest_version: int | None  # of all files; None: no file
    newest_version: int | None
    keys: int | None  # live keys at the newest version; None: not counted, or not readable
    changelogs: int
    changelog_bytes: int
    snapshots: tuple[SnapshotView, ...]  # ascending
    sst_files: int
    sst_bytes: int
    newest_bytes: int  # SSTs that the newest snapshot of this store or of another one names
    unreferenced_bytes: int  # SSTs that no manifest names, or none yet
    slots: tuple[tuple[int, int], ...]  # owned, half-open; empty if not known
    scalable: bool | None  # None: not known
    unscalable_reason: str
    cost: StoreCost | None = None  # None: not on an object storage
    # The last committed batch has no such partition, and so it has no keys: a rescale took it away,
    # and its files go with the last version that needs them; or a rescale that adds it has not
    # ended.
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """One stateful operator."""

    operator: int
    name: str | None
    stores: tuple[StoreView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Notebook):
    """What a Spark checkpoint holds. In a notebook it shows itself; `to_arrow()` and `to_pandas()`
    return a row for each store.

    `to_json` is the contract of `millpond checkpoint show --json`: fields are added, never renamed.
    """

    checkpoint: str
    query_id: str | None
    provider: str | None
    spark_checkpoint_format: int
    partitions: int | None
    first_partitions: int | None  # at the first committed batch
    max_parallelism: int | None
    key_group_base: int | None
    backend: str | None  # for sessions that set none
    first_offset_batch: int | None
    last_offset_batch: int | None
    first_committed_batch: int | None
    last_committed_batch: int | None
    operators: tuple[OperatorView, ...]
    asked_partitions: int | None  # another number, which the last start of the query asked for
    asked_refused: str  # why that start did not get it, if the option rescale.onRestart is set
    problems: tuple[str, ...]  # files that cannot be read; `verify` says more
    # A rescale runs, or was interrupted. Its partitions have `removed` set until it has ended.
    rescaling: bool
    cost: StoreCost | None = None  # of all stores; None: not on an object storage

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _sheet(self) -> Sheet:
        committed = _range(self.first_committed_batch, self.last_committed_batch)
        rows = [_row(operator, store) for operator in self.operators for store in operator.stores]
        return Sheet(
            title=f"Spark checkpoint {self.checkpoint}",
            facts=(
                ("query", self.query_id),
                ("committed batches", committed),
                ("begun batches", _range(self.first_offset_batch, self.last_offset_batch)),
                ("Spark checkpoint format", self.spark_checkpoint_format),
                ("partitions", self.partitions),
                ("max parallelism", self.max_parallelism),
            ),
            table=Table("stores", _COLUMNS, rows),
            problems=self.problems,
        )

    def of(self, operator: int | str) -> Overview:
        """Return this with one operator alone. Raises: InvalidInputError: OPERATOR_UNKNOWN."""
        chosen = tuple(
            op for op in self.operators if operator in (op.operator, str(op.operator), op.name)
        )
        if not chosen:
            there = ", ".join(f"{op.operator} ({op.name})" for op in self.operators)
            raise InvalidInputError(
                f"no operator {operator!r}; there are: {there or 'none'}",
                kind=ErrorKind.OPERATOR_UNKNOWN,
                hint="Name one of these, by its number or its name.",
            )
        return replace(self, operators=chosen)


_COLUMNS = (
    ("operator", NUMBER),
    ("name", TEXT),
    ("partition", NUMBER),
    ("store", TEXT),
    ("oldest_version", NUMBER),
    ("newest_version", NUMBER),
    ("keys", NUMBER),
    ("changelogs", NUMBER),
    ("changelog_bytes", NUMBER),
    ("snapshots", NUMBER),
    ("newest_snapshot", NUMBER),
    ("sst_files", NUMBER),
    ("sst_bytes", NUMBER),
    ("unreferenced_bytes", NUMBER),
)


def _row(operator: OperatorView, store: StoreView) -> tuple[Value, ...]:
    return (
        operator.operator,
        operator.name,
        store.partition,
        store.name,
        store.oldest_version,
        store.newest_version,
        counted(store.keys),
        store.changelogs,
        store.changelog_bytes,
        len(store.snapshots),
        store.snapshots[-1].version if store.snapshots else None,
        store.sst_files,
        store.sst_bytes,
        store.unreferenced_bytes,
    )


def _range(first: int | None, last: int | None) -> str:
    return "none" if last is None else f"{first} to {last}"


def overview(storage: Storage, checkpoint: str, tariff: Tariff | None = None) -> Overview:
    """Return what the Spark checkpoint in `storage` holds. Reads listings, manifests and one header
    per store.

    Args:
        checkpoint: its name, for display.
        tariff: for the costs; None: leave them out.
    Raises: see `survey`.
    """
    found = survey(storage, checkpoint)
    unfinished = (*problems_of_claim(storage), *problems_of_rescale(found))
    problems = [f"{one.file}: {one.message}. {one.hint}" for one in unfinished]
    problems += [f"{key}: {_without(e.message, key)}" for key, e in found.errors]
    operators: list[OperatorView] = []
    for operator in found.operator_ids():
        info = found.operators.get(operator)
        listings = {
            store: listing for store, listing in found.stores.items() if store.operator == operator
        }
        manifests = {
            store: _manifests(storage, listing, problems) for store, listing in listings.items()
        }
        # A manifest that a rescale composed names files of other partitions.
        named = {
            key
            for store, some in manifests.items()
            for _, manifest in some
            for key in manifest.sst_keys(store)
        }
        newest = {
            key
            for store, some in manifests.items()
            if some and not _is_removed(found, store)
            for key in some[-1][1].sst_keys(store)
        }
        stores = [
            _store_view(
                storage, found, store, listing, manifests[store], named, newest, problems, tariff
            )
            for store, listing in listings.items()
        ]
        operators.append(
            OperatorView(
                operator=operator,
                name=info.name if info is not None else None,
                stores=tuple(stores),
            )
        )
    spark, partitions = found.spark, _partitions(found)
    offsets = spark.offset_batches if spark is not None else ()
    commits = spark.commit_batches if spark is not None else ()
    asked = read_asked(storage)
    if asked is not None and (spark is None or asked.partitions == partitions):
        asked = None  # a later rescale did it
    return Overview(
        checkpoint=checkpoint,
        query_id=spark.query_id if spark is not None else None,
        provider=spark.provider_class if spark is not None else None,
        spark_checkpoint_format=found.spark_format,
        partitions=partitions,
        first_partitions=spark.partitions_at(commits[0] + 1) if spark and commits else None,
        max_parallelism=found.format.max_parallelism if found.format is not None else None,
        key_group_base=found.format.base if found.format is not None else None,
        backend=found.format.backend if found.format is not None else None,
        first_offset_batch=offsets[0] if offsets else None,
        last_offset_batch=offsets[-1] if offsets else None,
        first_committed_batch=commits[0] if commits else None,
        last_committed_batch=commits[-1] if commits else None,
        operators=tuple(operators),
        asked_partitions=asked.partitions if asked is not None else None,
        asked_refused=asked.refused if asked is not None else "",
        problems=tuple(problems),
        rescaling=found.rescale is not None,
        cost=None
        if tariff is None
        else sum_of([s.cost for o in operators for s in o.stores if s.cost is not None]),
    )


def _partitions(found: Survey) -> int | None:
    """Return the number of state partitions, which a rescale changes only at its end, and Spark's
    own repartition never.
    """
    spark = found.spark
    if spark is None:
        return None
    committed = spark.last_committed_batch
    if committed is None:
        return spark.partitions
    return spark.partitions_at(committed + 1)


def _without(message: str, key: str) -> str:
    return message.removeprefix(f"{key}: ")


def _manifests(
    storage: Storage, listing: Listing, problems: list[str]
) -> list[tuple[VersionId, Manifest]]:
    """Return the manifests of a store that can be read, ascending."""
    manifests: list[tuple[VersionId, Manifest]] = []
    for version in sorted(listing.manifests):
        key = listing.manifests[version].key
        try:
            manifests.append((version, decode_manifest(storage.read(key), name=key)))
        except (FormatError, UnsupportedError) as e:
            problems.append(e.message)
        except NotFoundError:
            continue  # a running query collected it after the listing
    return manifests


def _store_view(
    storage: Storage,
    found: Survey,
    store: StoreId,
    listing: Listing,
    manifests: list[tuple[VersionId, Manifest]],
    named: set[str],
    newest: set[str],
    problems: list[str],
    tariff: Tariff | None,
) -> StoreView:
    header = _newest_header(storage, listing, problems)
    newest_manifest = manifests[-1][1] if manifests else None
    keys: int | None = None
    groups = None
    if header is not None and (
        newest_manifest is None or header.version >= newest_manifest.version
    ):
        keys, groups = header.keys, header.key_groups
    elif newest_manifest is not None:
        keys, groups = newest_manifest.keys, newest_manifest.key_groups
    removed = _is_removed(found, store)
    if removed:
        keys, groups = 0, None
    numbers = sorted(
        {v.version for v in listing.changelogs} | {v.version for v in listing.manifests}
    )
    return StoreView(
        operator=store.operator,
        partition=store.partition,
        name=store.name,
        oldest_version=numbers[0] if numbers else None,
        newest_version=numbers[-1] if numbers else None,
        keys=keys if keys is not None and keys >= 0 else None,
        changelogs=len(listing.changelogs),
        changelog_bytes=sum(info.size_bytes for info in listing.changelogs.values()),
        snapshots=tuple(
            _snapshot_view(found, store, version, manifest) for version, manifest in manifests
        ),
        sst_files=len(listing.ssts),
        sst_bytes=sum(info.size_bytes for info in listing.ssts.values()),
        newest_bytes=sum(info.size_bytes for info in listing.ssts.values() if info.key in newest),
        unreferenced_bytes=sum(
            info.size_bytes for info in listing.ssts.values() if info.key not in named
        ),
        slots=_owned_slots(
            found, store, groups.partitions if groups is not None else None, numbers
        ),
        scalable=groups.scalable if groups is not None else None,
        unscalable_reason=groups.reason if groups is not None else "",
        cost=None
        if tariff is None
        else store_cost(
            listing,
            [] if newest_manifest is None else list(newest_manifest.sizes(store).values()),
            tariff,
        ),
        removed=removed,
    )


def _snapshot_view(
    found: Survey, store: StoreId, version: VersionId, manifest: Manifest
) -> SnapshotView:
    ssts = manifest.sst_sizes(store)
    return SnapshotView(
        version=manifest.version,
        id=manifest.id,
        manifest=layout.manifest_name(version, found.spark_format if version.id else 1),
        ssts=len(ssts),
        bytes=sum(ssts.values()),
        keys=manifest.keys,
        created_ms=manifest.created_ms,
    )


def _is_removed(found: Survey, store: StoreId) -> bool:
    """Whether the last committed batch has no partition of this number."""
    batch = found.spark.last_committed_batch if found.spark is not None else None
    count = None if batch is None else found.partitions_of(store.operator, batch)
    return count is not None and store.partition >= count


def _newest_header(
    storage: Storage, listing: Listing, problems: list[str]
) -> ChangelogHeader | None:
    if not listing.changelogs:
        return None
    key = listing.changelogs[max(listing.changelogs)].key
    try:
        return read_changelog_header(storage, key)
    except NotFoundError:
        return None  # a running query collected it after the listing
    except MillpondError as e:
        problems.append(e.message)
        return None


def _owned_slots(
    found: Survey, store: StoreId, partitions: int | None, versions: list[int]
) -> tuple[tuple[int, int], ...]:
    if found.format is None or partitions is None:
        return ()
    groups = found.format.key_groups_at(versions[-1])
    if partitions < 1 or groups.max_parallelism % partitions or store.partition >= partitions:
        return ()  # `verify` reports it
    return tuple(groups.slot_ranges(store.partition, partitions))
