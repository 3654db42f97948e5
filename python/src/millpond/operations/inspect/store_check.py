"""Reads one store back, and finds all that is wrong with it.

It checks every block of every changelog, every manifest, and size and CRC-32 of every SST that a
manifest names. Every snapshot must open in RocksDB, and hold the number of keys that it says, in
the slots that it owns. Every version that Spark may ask for must have a lineage that a restore can
follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from millpond.errors import ErrorKind, MillpondError, NotFoundError, UnavailableError
from millpond.format import layout, spark_names
from millpond.format.changelog import ChangelogHeader, ChangelogReader
from millpond.format.checksums import stream_crc32
from millpond.format.composed import contains
from millpond.format.manifest import Manifest
from millpond.local import rocks
from millpond.local.scratch import scratch_directory
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo
from millpond.model.key_groups import KeyGroups
from millpond.model.physical_key import FAMILY, PHYSICAL_PREFIX_BYTES, RESERVED_SLOT, SLOT_BYTES
from millpond.operations.inspect.logs import Problem, problem_of
from millpond.operations.inspect.sources import problems_of_sources
from millpond.query.expected import check_written_for
from millpond.query.survey import Survey
from millpond.spark.metadata import logged_batches
from millpond.storage import Storage
from millpond.storage.stored_file import stored_file
from millpond.store.files import Listing, StoreFiles
from millpond.store.restore.execute import Fetching, lay_out
from millpond.store.restore.plan import RestorePlan, plan_restore

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """How much was read."""

    stores: int = 0
    changelogs: int = 0
    changelog_bytes: int = 0
    records: int = 0
    manifests: int = 0
    ssts: int = 0
    sst_bytes: int = 0
    entries: int = 0  # live entries of all snapshots
    versions: int = 0  # restorable ones

    def __add__(self, other: Checked) -> Checked:
        mine, more = asdict(self), asdict(other)
        return Checked(**{name: mine[name] + more[name] for name in mine})

    def with_ssts(self, sizes: Mapping[str, int]) -> Checked:
        """Return it with the SSTs whose sizes in bytes these are, by key."""
        return replace(self, ssts=len(sizes), sst_bytes=sum(sizes.values()))


@dataclass(frozen=True, slots=True)
class PartCheck:
    """What was read of a part of what is checked, and all problems.

    ssts: size in bytes of those that are whole, by key. `checked` does not count them: after a
    rescale several stores name the same ones.
    """

    checked: Checked
    problems: list[Problem]
    ssts: Mapping[str, int] = field(default_factory=dict)


class _Vanished(Exception):
    """A listed file is gone: a running query collected it, or somebody deleted it.

    Then the check of the store begins again.
    """


def verify_store(storage: Storage, found: Survey, store: StoreId) -> PartCheck:
    """Read one store back.

    Raises: UnavailableError: storage or local disk.
    """
    for attempt in range(_ATTEMPTS):
        check = _StoreCheck(storage, found, store, last=attempt == _ATTEMPTS - 1)
        try:
            check.run()
        except _Vanished:
            continue
        return PartCheck(Checked(**check.read), check.problems, check.ssts)
    raise AssertionError("unreachable: the last attempt does not raise")


class _StoreCheck:
    """One check of one store."""

    def __init__(self, storage: Storage, found: Survey, store: StoreId, *, last: bool) -> None:
        self.storage, self.found, self.store, self.last = storage, found, store, last
        self.files = StoreFiles(storage, store, found.spark_format)
        self.read = Counter({"stores": 1})  # by field of Checked
        self.problems: list[Problem] = []
        self._bad_ssts: set[str] = set()
        self.ssts: dict[str, int] = {}  # size in bytes by key, relative to the Spark checkpoint
        self._operators: dict[str, set[int]] = {}  # that changelogs of a run have named so far
        # Versions whose changelog begins with an empty state, and so needs nothing older.
        self._whole: list[int] = []

    def run(self) -> None:
        listing = self.files.refresh()
        for version in sorted(listing.changelogs):
            self._guard(listing.changelogs[version].key, partial(self._changelog, version, listing))
        manifests: list[tuple[str, Manifest]] = []
        for version in sorted(listing.manifests):
            key = listing.manifests[version].key
            self._guard(key, partial(self._read_manifest, version, key, manifests))
        for key, manifest in manifests:
            self._manifest(key, manifest, listing)
        self._versions(listing)

    def _read_manifest(
        self, version: VersionId, key: str, manifests: list[tuple[str, Manifest]]
    ) -> None:
        manifests.append((key, self.files.read_manifest(version)))

    def _guard(self, file: str, action: Callable[[], None]) -> None:
        try:
            action()
        except UnavailableError:
            raise
        except MillpondError as e:
            if e.kind is ErrorKind.OBJECT_NOT_FOUND and not self.last:
                raise _Vanished from e
            self.problems.append(problem_of(file, e))

    def _note(self, kind: ErrorKind, file: str, message: str) -> None:
        problem = Problem(
            kind=kind.value, file=file, message=message, hint=MillpondError("", kind=kind).hint
        )
        if problem not in self.problems:
            self.problems.append(problem)

    # ---- files

    def _changelog(self, version: VersionId, listing: Listing) -> None:
        info = listing.changelogs[version]
        if self.files.exact_ids and not version.id:
            return  # of a batch that was tried in Spark checkpoint format 1, and not committed
        with stored_file(self.storage, info.key) as file:
            reader = ChangelogReader(file, name=info.key)
            header = reader.header
            records = sum(1 for _ in reader)
        wrong_id = self.files.exact_ids and header.id != version.id
        wrong_store = (header.store.partition, header.store.name) != (
            self.store.partition,
            self.store.name,
        )
        if header.version != version.version or wrong_id or wrong_store:
            self._note(
                ErrorKind.CHANGELOG_DAMAGED,
                info.key,
                f"says that it is version {header.version_id} of store {header.store}",
            )
        self._operator(info.key, header)
        if header.empty_base:
            self._whole.append(header.version)
        self._key_groups(info.key, header.key_groups, version.version)
        self.read["changelogs"] += 1
        self.read["changelog_bytes"] += info.size_bytes
        self.read["records"] += records

    def _operator(self, key: str, header: ChangelogHeader) -> None:
        """Note a changelog of another operator.

        A restore may have given the operator another number. Then all older changelogs name the old
        one; after a second restore, two old ones. In one run of a query the number stays.
        """
        named, own, run = header.store.operator, self.store.operator, header.run_id
        of_run = self._operators.setdefault(run, set())
        # What a command wrote anew has no run.
        others = of_run if run else set().union(*self._operators.values()) & {own}
        if named != own and others - {named}:
            self._note(
                ErrorKind.CHANGELOG_DAMAGED,
                key,
                f"says that it is of store {header.store}, of another operator",
            )
            return
        of_run.add(named)

    def _key_groups(self, file: str, groups: KeyGroupsInfo, version: int) -> None:
        known = self.found.format.key_groups_at(version) if self.found.format is not None else None
        if known is not None and (groups.max_parallelism, groups.base) != (
            known.max_parallelism,
            known.base,
        ):
            self._note(
                ErrorKind.MAX_PARALLELISM_MISMATCH,
                file,
                f"written with max parallelism {groups.max_parallelism} and base {groups.base}, the"
                f" Spark checkpoint has {known.max_parallelism} and {known.base}",
            )

    def _manifest(self, key: str, manifest: Manifest, listing: Listing) -> None:
        self.read["manifests"] += 1
        self._key_groups(key, manifest.key_groups, manifest.version)
        if manifest.composed:
            good = manifest.sst_sizes(self.store)
            for kind, file, message in problems_of_sources(self.storage, manifest):
                if kind in (ErrorKind.SST_MISSING, ErrorKind.CHANGELOG_MISSING) and not self.last:
                    raise _Vanished
                self._note(kind, file, message)
                good.pop(file, None)
            self.ssts |= good
            return
        whole = True
        for sst in manifest.ssts:
            sst_key = layout.store_key(self.store, sst.key)
            if sst_key in self.ssts:
                continue
            if sst.key in self._bad_ssts:
                whole = False
                continue
            stored = listing.ssts.get(sst.key)
            try:
                if stored is None:
                    if not self.last:
                        raise _Vanished
                    self._note(
                        ErrorKind.SST_MISSING, sst_key, f"is not there, and {_name(key)} names it"
                    )
                elif stored.size_bytes != sst.size_bytes:
                    self._note(
                        ErrorKind.SST_DAMAGED,
                        sst_key,
                        f"has {stored.size_bytes} bytes, {_name(key)} says {sst.size_bytes}",
                    )
                elif (crc := _crc32(self.storage, sst_key)) != sst.crc32:
                    self._note(
                        ErrorKind.SST_DAMAGED,
                        sst_key,
                        f"has CRC-32 {crc:08x}, {_name(key)} says {sst.crc32:08x}",
                    )
                else:
                    self.ssts[sst_key] = sst.size_bytes
                    continue
            except NotFoundError as e:
                if not self.last:
                    raise _Vanished from e
                self._note(
                    ErrorKind.SST_MISSING, sst_key, f"is not there, and {_name(key)} names it"
                )
            self._bad_ssts.add(sst.key)
            whole = False
        if whole:
            self._guard(key, partial(self._entries, key, manifest))

    def _entries(self, key: str, manifest: Manifest) -> None:
        families = {family.id: family for family in manifest.column_families}
        entries = foreign = 0
        keys: Counter[int] = Counter()  # by slot
        with scratch_directory("verify") as directory:
            database = f"{directory}/db"
            try:
                lay_out(
                    self.storage, manifest, _name(key), database, Fetching(verify_checksums=False)
                )
            except NotFoundError as e:
                if not self.last:
                    raise _Vanished from e
                raise
            for physical, _ in rocks.scan(database, name=key):
                entries += 1
                known = families.get(int.from_bytes(physical[FAMILY], "big"))
                if known is None or not _owned(physical, known, manifest):
                    foreign += 1
                elif not known.internal:
                    keys[known.slot_of(physical)] += 1
        self.read["entries"] += entries
        if foreign:
            self._note(
                ErrorKind.KEY_GROUP_MISMATCH,
                key,
                f"{foreign} of {entries} entries lie outside the slots or column families that it"
                " names",
            )
            return
        total = keys.total()
        if manifest.keys not in (-1, total):
            self._note(
                ErrorKind.SST_DAMAGED,
                key,
                f"holds {total} keys, and says that it holds {manifest.keys}",
            )
        elif manifest.group_keys is not None and manifest.group_keys != _group_keys(keys, manifest):
            self._note(
                ErrorKind.SST_DAMAGED, key, "its key groups hold other numbers of keys than it says"
            )

    # ---- versions

    def _versions(self, listing: Listing) -> None:
        """Plan the restore of every version that Spark may ask for."""
        for target in self._targets(listing):
            try:
                self._check_partitions(target, plan_restore(self.files, target))
            except UnavailableError:
                raise
            except MillpondError as e:
                if e.kind is ErrorKind.OBJECT_NOT_FOUND and not self.last:
                    raise _Vanished from e
                if self._expired_meanwhile(target.version):
                    continue
                self.problems.append(
                    Problem(
                        kind=e.kind.value,
                        file=layout.store_dir(self.store),
                        message=(
                            f"the state of batch {target.version - 1} cannot be restored:"
                            f" {e.message}"
                        ),
                        hint=e.hint,
                    )
                )
            else:
                self.read["versions"] += 1

    def _expired_meanwhile(self, version: int) -> bool:
        """Whether a version has expired since Spark's logs were read: its query runs."""
        before = self.found.spark.commit_batches if self.found.spark is not None else ()
        now = logged_batches(self.storage, spark_names.COMMITS_DIR)
        return bool(before and now) and now[0] > before[0] and version < _surely_kept(now)

    def _check_partitions(self, target: VersionId, plan: RestorePlan) -> None:
        batch, operator = target.version - 1, self.store.operator
        entry = self.found.spark.offsets.get(batch) if self.found.spark is not None else None
        partitions = self.found.partitions_of(operator, batch)
        if entry is not None and partitions is not None and entry.partitions == partitions:
            check_written_for(self.store, plan.newest, batch, partitions)

    def _was_there(self, version: int) -> bool:
        """Whether the query had the store's partition at this version.

        A rescale may have made it later, or removed it.
        """
        partitions = (
            self.found.spark.partitions_at(version) if self.found.spark is not None else None
        )
        return partitions is None or self.store.partition < partitions

    def _targets(self, listing: Listing) -> list[VersionId]:
        spark = self.found.spark
        committed = (
            [b for b in spark.kept_batches if not spark.was_left_out(b)]
            if spark is not None
            else []
        )
        manifests = [version.version for version in listing.manifests]
        # Of changelogs with all rows, which rehashes wrote, the newest counts. An older one may be
        # there only because a later rescale put a snapshot together of it.
        snapshots = manifests or sorted(self._whole)[-1:]
        # Versions below the oldest snapshot were collected, or soon will be. Without a snapshot
        # nothing was ever collected, unless a rescale removed the partition: its files go with the
        # last version that needs them. But Spark's commit log keeps as many batches as the state
        # keeps versions, and at most two more. If another batch of the log cannot be restored, the
        # oldest snapshot was lost.
        oldest = min(snapshots, default=1)
        if len(committed) > 2:
            sure = _surely_kept(committed)
            removed = not manifests and not self._was_there(committed[-1] + 1)
            oldest = sure if removed else min(oldest, sure)
        if committed:
            # A query that began with a savepoint begins with one batch. Its older files are there
            # because later versions need them. The last batch must be restorable in any case.
            oldest = min(max(oldest, committed[0] + 1), committed[-1] + 1)
        if not self.files.exact_ids:
            left_out = (
                {batch + 1 for batch in spark.commit_batches if spark.was_left_out(batch)}
                if spark
                else set()
            )
            present = {version.version for version in listing.changelogs} | set(manifests)
            wanted = (present | {batch + 1 for batch in committed}) - left_out
            return [VersionId(v) for v in sorted(wanted) if v >= oldest and self._was_there(v)]
        targets: list[VersionId] = []
        info = self.found.operators.get(self.store.operator)
        if spark is None or info is None or self.store.name not in info.stores:
            return targets
        for batch in committed:
            entry = spark.commits.get(batch)
            id = entry.id_of(self.store, info.stores) if entry is not None else None
            if batch + 1 >= oldest and id is not None:
                targets.append(VersionId(batch + 1, id))
        return targets


def _surely_kept(committed: Sequence[int]) -> int:
    """Return the oldest version that must be there, by the batches of the commit log, ascending."""
    return committed[min(2, len(committed) - 1)] + 1


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _crc32(storage: Storage, key: str) -> int:
    with stored_file(storage, key) as file:
        return stream_crc32(file)


def _owned(physical: bytes, family: ColumnFamily, manifest: Manifest) -> bool:
    """Whether the row belongs to the slots of the manifest."""
    if len(physical) < PHYSICAL_PREFIX_BYTES + (SLOT_BYTES if family.spans_key_groups else 0):
        return False
    if family.spans_key_groups and int.from_bytes(physical[:SLOT_BYTES], "big") != RESERVED_SLOT:
        return False
    return not manifest.key_groups.scalable or contains(manifest.slots, family.slot_of(physical))


def _group_keys(keys: Counter[int], manifest: Manifest) -> tuple[int, ...]:
    """Return keys as a manifest counts them: by the key groups of its partition, ascending."""
    info = manifest.key_groups
    groups = KeyGroups(info.max_parallelism, info.base)
    return tuple(
        keys[groups.slot(group)]
        for group in groups.groups_of(manifest.store.partition, info.partitions)
    )
