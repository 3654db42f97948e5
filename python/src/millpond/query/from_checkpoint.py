"""Read the image of a query at a committed batch from its Spark checkpoint. The query may run.
Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    error,
)
from millpond.format import layout, spark_names
from millpond.format.format_file import decode_format, encode_format
from millpond.format.manifest import Manifest
from millpond.model.ids import StoreId, VersionId
from millpond.model.key_groups import KeyGroups
from millpond.query.bulk import check_files
from millpond.query.expected import check_ids, check_written_for, operators_at, stores_of
from millpond.query.image import Image, OperatorImage, StoredFile, StoreImage
from millpond.query.planned_stores import PlannedStore, each, plan_store
from millpond.query.survey import Survey, survey
from millpond.spark import saved_logs, source_logs
from millpond.spark.log_edit import offsets_as_planned
from millpond.spark.log_entries import OffsetEntry, OperatorInfo, is_number, parse_offsets
from millpond.spark.metadata import PROVIDER_KEY, SparkMetadata
from millpond.spark.sinks.recorded import read_sink
from millpond.storage import Storage, read_if_there
from millpond.store.files import StoreFiles, is_local
from millpond.store.restore.plan import RestorePlan

Listed = dict[tuple[StoreId, int], StoreFiles]
"""The files of stores, by store and Spark checkpoint format."""


def look(
    storage: Storage,
    found: Survey,
    checkpoint: str,
    batch: int | None = None,
    *,
    erasing: bool = False,
    operator: int | None = None,
    listed: Listed | None = None,
) -> Image:
    """Return the image of the query in `storage` at `batch` (None: the last committed one).

    The query and a collection may run meanwhile. All files that the image names are there now. They
    stay if the caller pins them now.

    Args:
        found: what a survey has just found in `storage`.
        checkpoint: name of the Spark checkpoint, for messages.
        erasing: as for `survey`.
        operator: with the stores of this one alone; None: of all.
        listed: what earlier looks by `found` have read of stores, which this one adds to. Each has
            the files that `found` lists: some may be gone. None: list each store anew.
    Raises:
        InvalidInputError: PARTITIONS_CHANGED.
        UnsupportedError: FORMAT_TOO_NEW.
        ConflictError: RESCALE_UNFINISHED, ERASE_UNFINISHED.
        NotFoundError: BATCH_NOT_COMMITTED, VERSION_EXPIRED, CHANGELOG_MISSING, SST_MISSING.
        FormatError: a file that is needed is damaged.
    """
    reader = _Reader(storage, found, checkpoint, erasing=erasing, operator=operator, listed=listed)
    return reader.read(batch)


Plans = Mapping[StoreId, tuple[StoreFiles, RestorePlan]]


def look_with_plans(storage: Storage, found: Survey, checkpoint: str) -> tuple[Image, Plans]:
    """Return the image at the last committed batch, as `look` does, and the restore plan of each
    store.
    """
    reader = _Reader(storage, found, checkpoint)
    return reader.read(None), reader.plans


def spark_image(
    storage: Storage, checkpoint: str, batch: int | None = None, *, erasing: bool = False
) -> Image:
    """Return the image of what Spark itself wrote.

    The files of its stores may be any provider's; the image does not have them.

    Args:
        erasing: as for `survey`.
    Raises: as `look` and `survey`, but nothing about the files of stores.
    """
    found = survey(storage, checkpoint, foreign=True, erasing=erasing)
    return _SparkReader(storage, found, checkpoint, erasing=erasing).read(batch)


class _Reader:
    def __init__(
        self,
        storage: Storage,
        found: Survey,
        checkpoint: str,
        *,
        erasing: bool = False,
        operator: int | None = None,
        listed: Listed | None = None,
    ) -> None:
        self.storage, self.found, self.checkpoint = storage, found, checkpoint
        self.erasing, self.operator, self.listed = erasing, operator, listed
        self.texts: dict[str, bytes] = {}
        self.files: dict[str, StoredFile] = {}
        self.plans: dict[StoreId, tuple[StoreFiles, RestorePlan]] = {}
        self.ended: set[str] = set()  # keys of changelogs that are known to have their end

    def read(self, batch: int | None) -> Image:
        found, spark = self.found, self.found.spark
        assert spark is not None
        if found.rescale is not None:
            e = found.rescale
            raise error(e.kind, f"{self.checkpoint}: {e.message}", hint=e.hint) from e
        self._check_lost(spark, batch)
        batch = self._batch(spark, batch)
        version = batch + 1
        for key, e in found.errors:
            if self._concerns(key, batch):
                raise e
        commit, offsets = spark.commits[batch], self._offsets(spark, batch)
        if offsets is None:
            raise FormatError(
                f"{spark_names.offsets_key(batch)} is not there, although the batch is committed",
                kind=ErrorKind.FORMAT_DAMAGED,
            )
        planned = self._planned(spark, offsets)
        self._log_entry(spark_names.commits_key(batch), batch)
        self._log_entry(spark_names.offsets_key(batch), batch)
        # Spark also wants the entry before it, if it is kept: it tells sources where they were.
        if batch > 0:
            self._optional(spark_names.offsets_key(batch - 1))
        self._optional(spark_names.QUERY_METADATA_KEY)
        groups = self._key_groups(version)
        self._sources(planned or offsets)
        operators = tuple(self._operators(spark, version, offsets))
        check_files(self.storage, self.files.values(), self.found.sizes(), self.ended)
        return Image(
            batch=batch,
            planned_batch=batch + 1 if planned is not None else None,
            query_id=spark.query_id,
            provider=offsets.conf.get(PROVIDER_KEY),
            spark_checkpoint_format=2 if commit.has_state_ids else 1,
            partitions=offsets.partitions,
            max_parallelism=groups.max_parallelism if groups is not None else None,
            key_group_base=groups.base if groups is not None else None,
            watermark_ms=commit.watermark_ms,
            timestamp_ms=offsets.timestamp_ms,
            operators=operators,
            texts=dict(sorted(self.texts.items())),
            files=tuple(file for _, file in sorted(self.files.items())),
            sink=read_sink(self.storage),
        )

    def _batch(self, spark: SparkMetadata, batch: int | None) -> int:
        commits = spark.commit_batches
        if not commits:
            raise NotFoundError(
                f"{self.checkpoint}: no batch is committed yet",
                kind=ErrorKind.BATCH_NOT_COMMITTED,
                hint="Wait until the query has committed its first batch.",
            )
        if batch is None:
            return commits[-1]
        oldest = spark.kept_batches[0] if spark.kept_batches else commits[0]
        if batch in commits and batch >= oldest:
            if spark.was_left_out(batch):
                raise error(
                    ErrorKind.BATCH_NOT_COMMITTED,
                    f"{self.checkpoint}: batch {batch} was left out by a rescale, and never"
                    " committed",
                )
            return batch
        if 0 <= batch < oldest:
            raise error(
                ErrorKind.VERSION_EXPIRED,
                f"{self.checkpoint}: batch {batch} has expired: the oldest in Spark's logs is"
                f" {oldest}",
            )
        raise NotFoundError(
            f"{self.checkpoint}: batch {batch} is not committed; the last one is {commits[-1]}",
            kind=ErrorKind.BATCH_NOT_COMMITTED,
        )

    def _check_lost(self, spark: SparkMetadata, batch: int | None) -> None:
        """Raise the error of a lost entry of Spark's logs that the image needs."""
        last = batch if batch is not None else spark.last_committed_batch
        for lost in self.found.lost:
            near = last is None or abs(lost.batch - last) <= 1
            if (batch is None and (last is None or lost.batch > last)) or (
                near and (lost.batch == last or lost.key == spark_names.offsets_key(lost.batch))
            ):
                raise lost.error()

    @staticmethod
    def _concerns(key: str, batch: int) -> bool:
        """Whether the state after `batch` depends on a file. Most entries of Spark's logs do not
        matter.
        """
        match spark_names.log_entry(key):
            case None:
                return True
            case (spark_names.OFFSETS_DIR, number):
                return abs(number - batch) <= 1
            case (_, number):
                return number == batch

    def _planned(self, spark: SparkMetadata, offsets: OffsetEntry) -> OffsetEntry | None:
        """Return the next batch's entry of the offset log, and take it into the image.

        With it the next batch reads what it reads, or has read, in the saved query. A sink that
        knows batches by number may have seen a part of that batch; so it gets the same rows again,
        even if a rescale left the batch out. A rescale is a batch of its own: the entry after it
        may be of another number of partitions than the state, and is not taken.
        """
        batch = offsets.batch + 1
        key, entry = spark_names.offsets_key(batch), self._offsets(spark, batch)
        if entry is None or entry.partitions != offsets.partitions:
            return None
        text = read_if_there(self.storage, key)
        if text is None:
            return None
        planned = offsets_as_planned(text.decode("utf-8", "replace"), name=key)
        if planned is None:
            return None
        self.texts[key] = planned.encode("utf-8")
        return parse_offsets(planned, batch)

    def _offsets(self, spark: SparkMetadata, batch: int) -> OffsetEntry | None:
        """Return an entry of the offset log. A running query may have written it after the log was
        listed.
        """
        if batch in spark.offsets:
            return spark.offsets[batch]
        data = read_if_there(self.storage, spark_names.offsets_key(batch))
        return None if data is None else parse_offsets(data.decode("utf-8", "replace"), batch)

    def _log_entry(self, key: str, batch: int) -> None:
        """Take an entry of Spark's logs that was there when they were read."""
        try:
            self._text(key)
        except NotFoundError as e:
            raise error(
                ErrorKind.VERSION_EXPIRED,
                f"{self.checkpoint}: batch {batch} has expired: Spark has just removed {key}",
            ) from e

    def _text(self, key: str) -> bytes:
        self.texts[key] = self.storage.read(key)
        return self.texts[key]

    def _optional(self, key: str) -> None:
        try:
            self._text(key)
        except NotFoundError:
            return

    def _key_groups(self, version: int) -> KeyGroups | None:
        """Take `millpond/format.json` as it was when `version` was the newest, and return its key
        groups; None: there is no such file.

        Later rescales are none of the image's: a query that is made of it has its own versions.
        What the survey saw does not count: a rescale or an erasure may have begun since.
        """
        self._optional(layout.FORMAT_KEY)
        text = self.texts.get(layout.FORMAT_KEY)
        if text is None:
            return None
        now = decode_format(text, erasing=self.erasing)
        then = now.as_of(version)
        if then != now:
            self.texts[layout.FORMAT_KEY] = encode_format(then)
        return then.key_groups

    def _sources(self, offsets: OffsetEntry) -> None:
        """Take what sources remember; of a file source's log, the part up to the offsets."""
        prefix = spark_names.SOURCES_PREFIX
        by_source: dict[str, list[str]] = {}
        for info in self.storage.list(prefix):
            source, _, name = info.key[len(prefix) :].partition("/")
            # Names with a dot are Hadoop's checksum files and temporary files.
            if name and not name.rpartition("/")[2].startswith("."):
                by_source.setdefault(source, []).append(name)
        folders = max((int(source) for source in by_source if is_number(source)), default=-1) + 1
        for source, names in by_source.items():
            directory = spark_names.source_prefix(source)
            chosen = None
            last = saved_logs.last_source_log_offset(offsets, source, folders)
            if last is not None:

                def read(name: str, at: str = directory) -> bytes:
                    return self.storage.read(at + name)

                chosen = source_logs.cut(names, last, read)
            for name, content in (chosen if chosen is not None else dict.fromkeys(names)).items():
                if content is not None:
                    self.texts[directory + name] = content
                else:
                    self._text(directory + name)

    # ---- state

    def _operators(
        self, spark: SparkMetadata, version: int, offsets: OffsetEntry
    ) -> Iterator[OperatorImage]:
        batch = version - 1
        commit = spark.commits[batch]
        for operator in operators_at(commit, self.found.operator_ids()):
            if self.operator not in (None, operator):
                continue
            info = self.found.operators.get(operator)
            if info is None:
                raise FormatError(
                    f"{layout.operator_dir(operator)}: state without operator metadata",
                    kind=ErrorKind.FORMAT_DAMAGED,
                )
            self._metadata(operator, batch)
            partitions = self.found.partitions_of(operator, batch) or self._present(operator)
            check_ids(commit, operator, partitions)
            stores = self._stores(
                list(stores_of(operator, info, partitions)),
                version,
                partial(self._id, spark, info, version=version),
                offsets.partitions,
                partitions,
            )
            yield OperatorImage(operator=operator, name=info.name, stores=tuple(stores))

    def _present(self, operator: int) -> int:
        """Return how many partitions are there. Only the offset log of Spark before 2.4 does not
        say it.
        """
        return max(
            (store.partition + 1 for store in self.found.stores if store.operator == operator),
            default=1,
        )

    def _id(self, spark: SparkMetadata, info: OperatorInfo, store: StoreId, version: int) -> str:
        """Return the id of a store's version; "" in Spark checkpoint format 1."""
        commit = spark.commits[version - 1]
        if not commit.has_state_ids:
            return ""
        id = commit.id_of(store, info.stores)
        if id is None:
            raise _no_id(store, version)
        return id

    def _metadata(self, operator: int, batch: int) -> None:
        """Take the operator metadata as of `batch`, and the schemas that it names."""
        self._optional(spark_names.operator_metadata_v1_key(operator))
        prefix = spark_names.operator_metadata_v2_prefix(operator)
        numbers = [
            spark_names.parse_batch(info.key[len(prefix) :]) for info in self.storage.list(prefix)
        ]
        newest = max((n for n in numbers if n is not None and n <= batch), default=None)
        if newest is not None:
            key = f"{prefix}{newest}"
            text = self._text(key)
            self.texts[key] = saved_logs.operator_metadata(
                text,
                operator,
                lambda path: spark_names.relative_state_schema(path, operator),
                name=key,
            )
            for path in saved_logs.schema_paths(text, name=key):
                self._text(spark_names.relative_state_schema(path, operator))
        for name in self.found.operators[operator].stores:
            self._optional(spark_names.state_schema_key(StoreId(operator, 0, name)))

    def _stores(
        self,
        stores: Sequence[StoreId],
        version: int,
        id_of: Callable[[StoreId], str],
        pinned: int | None,
        partitions: int,
    ) -> list[StoreImage]:
        """Plan the stores of an operator, and take their manifests and the names of their files.

        Args:
            id_of: "" in Spark checkpoint format 1.
            pinned: number of partitions that the offset log says.
            partitions: of the operator.
        """

        def plan(store: StoreId) -> PlannedStore:
            id = id_of(store)
            try:
                target = VersionId(version, id)
            except InvalidInputError as e:
                raise _no_id(store, version) from e
            planned = plan_store(self._files(store, 2 if id else 1), target)
            if pinned == partitions:
                check_written_for(store, planned.plan.newest, version - 1, partitions)
            return planned

        local = all(is_local(self.storage, store) for store in stores)
        return [self._taken(planned) for planned in each(plan, stores, local=local)]

    def _files(self, store: StoreId, spark_format: int) -> StoreFiles:
        files = StoreFiles(self.storage, store, spark_format)
        if self.listed is None:
            files.refresh()
            return files
        files.listing = self.found.stores.get(store, files.listing)
        return self.listed.setdefault((store, spark_format), files)

    def _taken(self, planned: PlannedStore) -> StoreImage:
        files, plan = planned.files, planned.plan
        self.plans[files.store] = (files, plan)
        self.ended |= files.ended
        size_bytes = 0
        keys = -1
        self.texts |= planned.texts
        if plan.manifest is not None:
            keys = plan.manifest.keys
            size_bytes += self._named(plan.manifest)
        for header in plan.headers:
            info = files.changelog_info(header.version_id)
            self.files[info.key] = StoredFile(
                key=info.key, source=info.key, size_bytes=info.size_bytes, crc32=None
            )
            size_bytes += info.size_bytes
            keys = header.keys
        return StoreImage(
            partition=files.store.partition,
            name=files.store.name,
            version=plan.target.version,
            id=plan.target.id,
            keys=keys,
            size_bytes=size_bytes,
        )

    def _named(self, manifest: Manifest) -> int:
        """Take the files that a manifest names. Return their size in bytes.

        After a rescale several manifests name the same files of other partitions.
        """
        ssts = [(manifest.store, sst) for sst in manifest.ssts]
        ssts += [
            (manifest.sibling(source.partition), sst)
            for source in manifest.sources
            for sst in source.ssts
        ]
        for store, sst in ssts:
            key = layout.store_key(store, sst.key)
            self.files[key] = StoredFile(
                key=key, source=key, size_bytes=sst.size_bytes, crc32=sst.crc32
            )
        for changelog, key in zip(manifest.changelogs, manifest.changelog_keys(), strict=True):
            self.files[key] = StoredFile(
                key=key, source=key, size_bytes=changelog.size_bytes, crc32=None
            )
        return manifest.total_bytes


class _SparkReader(_Reader):
    def _stores(
        self,
        stores: Sequence[StoreId],
        version: int,
        id_of: Callable[[StoreId], str],
        pinned: int | None,
        partitions: int,
    ) -> list[StoreImage]:
        return [
            StoreImage(
                partition=store.partition,
                name=store.name,
                version=version,
                id=id_of(store),
                keys=-1,
                size_bytes=0,
            )
            for store in stores
        ]


def _no_id(store: StoreId, version: int) -> FormatError:
    return FormatError(
        f"{spark_names.commits_key(version - 1)}: no id of store {store}",
        kind=ErrorKind.FORMAT_DAMAGED,
    )
