"""What the agent remembers about each store and each Spark checkpoint.

A request alone is enough to rebuild all of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millpond.agent.newest_open import NewestOpen
from millpond.agent.pending import check_wanted
from millpond.config import OptionValue, resolve
from millpond.errors import ErrorKind, InvalidInputError, MillpondError, NotFoundError
from millpond.format import layout, roots, spark_names
from millpond.format.format_file import CheckpointFormat
from millpond.model.ids import StoreId
from millpond.model.json_fields import JsonFields
from millpond.query.expected import schema_keys
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.metadata import SparkMetadata, read_operator_info, read_spark_metadata
from millpond.storage import Storage
from millpond.storage.owner import claim
from millpond.storage.parallel import Parallel
from millpond.storage.settings import HandedOver, StorageSettings, storage_settings
from millpond.store.by_name import UnlistedFiles
from millpond.store.collection.pins import Pins
from millpond.store.collection.survey import Marks
from millpond.store.files import StoreFiles
from millpond.store.restore.execute import Fetching
from millpond.store.sst_cache import SstCache, cache_directory

# How many files of all stores of one Spark checkpoint are fetched at the same time.
_FETCHES = 32
# Of so many Spark checkpoints whose stores are all closed the agent keeps the connection, and what
# it knows: with Spark's `unloadOnCommit` each batch closes its stores, and the next one opens them
# again.
_UNUSED = 4
# Of so many stores that were closed the agent remembers when they were collected.
_REMEMBERED = 10_000


def request_error(message: str) -> MillpondError:
    """Return the error for a request that does not follow the protocol."""
    return InvalidInputError(f"bad request: {message}", kind=ErrorKind.INVALID_ARGUMENT)


def option_int(options: Mapping[str, OptionValue], name: str) -> int:
    """Return the value of an option that is a whole number."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise request_error(f"option {name} is no whole number")
    return value


@dataclass(slots=True)
class CheckpointContext:
    """One Spark checkpoint during one run of its query."""

    uri: str
    storage: Storage
    # When the run first opened a store of it here.
    begun_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    lock: threading.Lock = field(default_factory=threading.Lock)
    last_sweep_ms: dict[int, int] = field(default_factory=dict)  # operator -> time
    sweeping: set[int] = field(default_factory=set)  # operators
    last_drop_ms: dict[int, int] = field(default_factory=dict)  # operator -> time
    # Of operators. Only the thread that sweeps the operator uses it.
    marks: dict[int, Marks] = field(default_factory=dict)
    pins: Pins = field(default_factory=Pins)
    # Kept only where the file is not local: once written, it never changes.
    format: CheckpointFormat | None = None
    # Operator -> Spark's logs. Kept only where they are not local: what the agent uses of them
    # stays the same while a query runs.
    spark_metadata: dict[int, SparkMetadata] = field(default_factory=dict)
    parallel: Parallel = field(default_factory=lambda: Parallel(_FETCHES))
    claiming: threading.Lock = field(default_factory=threading.Lock)
    claimed: bool = False
    recorded: set[int] = field(default_factory=set)  # operators that have a record on storage

    def claim(self) -> None:
        """Check that the state belongs to this Spark checkpoint, and not to one that this is a copy
        of. Called before each change; only the first call does it.

        Raises: InvalidInputError: STATE_OWNED.
        """
        if self.claimed:
            return
        with self.claiming:
            if not self.claimed:
                claim(self.storage, self.uri)
                self.claimed = True


@dataclass(slots=True)
class StoreContext:
    """One store of one provider. Calls of different stores run in parallel; locks keep calls of one
    store apart.

    A snapshot in flight must not hold up a commit. So there are `commit_lock` (open,
    publish_changelog) and `snapshot_lock` (publish_snapshot), and collections have a third lock.
    """

    checkpoint: CheckpointContext
    store: StoreId
    run_id: str
    spark_format: int
    partitions_hint: int | None
    options: Mapping[str, OptionValue]
    retain_versions: int
    maintenance_ms: int  # how often Spark maintains each store; 0: not known
    described: Mapping[str, Any]  # the protocol's `store`, without `local_dir` and `hadoop`
    hadoop: HandedOver
    directory: str | None  # local path of the store's directory, None where storage is not local
    sst_cache: SstCache | None  # only where storage is not local
    commit_lock: threading.Lock = field(default_factory=threading.Lock)
    snapshot_lock: threading.Lock = field(default_factory=threading.Lock)
    collect_lock: threading.Lock = field(default_factory=threading.Lock)
    ssts_lock: threading.Lock = field(default_factory=threading.Lock)
    newest_open: NewestOpen = field(default_factory=NewestOpen)
    # Names of manifests that the last open found unusable: a snapshot replaces them.
    distrusted: frozenset[str] = frozenset()
    # Keeps headers from one collection to the next; guarded by collect_lock.
    collect_files: StoreFiles | None = None
    last_collect_ms: int = 0

    @property
    def storage(self) -> Storage:
        return self.checkpoint.storage

    @property
    def fsync(self) -> bool:
        return self.options["commit.fsync"] is not False

    @property
    def fetching(self) -> Fetching:
        """How a restore fetches its files."""
        return Fetching(
            verify_checksums=self.options["restore.verifyChecksums"] is True,
            parallel=self.checkpoint.parallel if self.directory is None else None,
            cache=self.sst_cache,
            check_wanted=check_wanted(),
        )

    def record_operator(self, version: int) -> None:
        """Record that the query has this operator, before the first version of partition 0.

        Only Spark checkpoint format 1 needs the record: its commit log does not list operators, so
        nothing else would show that an operator's folder is lost.

        Raises: UnavailableError: the storage does not answer.
        """
        operator, recorded = self.store.operator, self.checkpoint.recorded
        if (
            version == 1
            and self.store.partition == 0
            and self.spark_format == 1
            and operator not in recorded
        ):
            self.storage.put_bytes(layout.operator_record_key(operator), b"")
            recorded.add(operator)

    def staging_dir(self, local_dir: str) -> str:
        """Return where the shim writes changelogs: beside their final place if that is local, so
        that publishing is a rename.
        """
        return self.directory if self.directory is not None else os.path.join(local_dir, "staging")

    def new_files(self) -> StoreFiles:
        """Return a fresh view of the store's files, not listed yet."""
        return StoreFiles(self.storage, self.store, self.spark_format)

    def unlisted_files(self, local_dir: str) -> UnlistedFiles:
        """Return a view of the store's files that works without a listing."""
        return UnlistedFiles(
            self.storage,
            self.store,
            self.spark_format,
            local_dir=local_dir,
            parallel=self.checkpoint.parallel,
            check_wanted=check_wanted(),
        )

    @property
    def event_fields(self) -> dict[str, str | int]:
        """The fields of every event about this store."""
        store = self.store
        return {
            "run_id": self.run_id,
            "operator": store.operator,
            "partition": store.partition,
            "store": store.name,
        }

    def operator_info(self) -> OperatorInfo | None:
        """Return what Spark recorded about this store's operator, None if nothing yet."""
        if self.storage.local_path(spark_names.QUERY_METADATA_KEY) is not None:
            return read_operator_info(self.storage, self.store.operator)
        return self.spark_metadata().operators.get(self.store.operator)

    def schema_files(self, info: OperatorInfo) -> dict[str, bytes]:
        """Return the schema files of this store that Spark has written, by key, the newest last."""
        found = {}
        for key in schema_keys(self.store.operator, info, self.store.name):
            with suppress(NotFoundError):
                found[key] = self.storage.read(key)
        return found

    def spark_metadata(self) -> SparkMetadata:
        """Return what Spark recorded about the query and this store's operator."""
        operator = self.store.operator
        known = self.checkpoint.spark_metadata.get(operator)
        if known is not None:
            return known
        metadata = read_spark_metadata(self.storage, batches=(), operators=(operator,))
        local = self.storage.local_path(spark_names.QUERY_METADATA_KEY) is not None
        if not local and metadata.partitions is not None and operator in metadata.operators:
            self.checkpoint.spark_metadata[operator] = metadata
        return metadata

    def option_int(self, name: str) -> int:
        return option_int(self.options, name)


_CheckpointKey = tuple[str, StorageSettings, str]  # URI, how to reach it, run
_StoreKey = tuple[str, int, int, str, str]  # root, operator, partition, name, run


def _key_of(value: Mapping[str, Any]) -> _StoreKey:
    """Return the key of the protocol's `store`. Raises: KeyError, TypeError."""
    return value["root"], value["operator"], value["partition"], value["name"], value["run_id"]


class _Times:
    """When stores that were closed were collected, and operators swept.

    With Spark's `unloadOnCommit` each batch closes its stores. Guarded by the lock of `Contexts`.
    """

    def __init__(self) -> None:
        self._collected: dict[_StoreKey, int] = {}
        # URI and run -> what the context of the Spark checkpoint has
        self._of_operators: dict[tuple[str, str], tuple[dict[int, int], dict[int, int]]] = {}

    def keep_store(self, key: _StoreKey, context: StoreContext) -> None:
        self._collected[key] = context.last_collect_ms
        if len(self._collected) > _REMEMBERED:
            del self._collected[next(iter(self._collected))]

    def keep_checkpoint(self, uri: str, run: str, checkpoint: CheckpointContext) -> None:
        self._of_operators[uri, run] = checkpoint.last_sweep_ms, checkpoint.last_drop_ms
        if len(self._of_operators) > _REMEMBERED:
            del self._of_operators[next(iter(self._of_operators))]

    def take_store(self, key: _StoreKey) -> int:
        return self._collected.pop(key, 0)

    def take_checkpoint(self, uri: str, run: str, checkpoint: CheckpointContext) -> None:
        kept = self._of_operators.pop((uri, run), None)
        if kept is not None:
            checkpoint.last_sweep_ms, checkpoint.last_drop_ms = kept


class Contexts:
    """Finds the context for the `store` of a request. Thread-safe."""

    def __init__(
        self, open_storage: Callable[[str, StorageSettings], Storage], local_root: str | None = None
    ) -> None:
        self._open_storage = open_storage
        self._local_root = local_root
        self._lock = threading.Lock()
        # The run is part of the key: a query may be deleted with its Spark checkpoint, and another
        # one begun at the same place.
        self._checkpoints: dict[_CheckpointKey, CheckpointContext] = {}
        # Held while the storage of a Spark checkpoint is opened.
        self._gates: dict[_CheckpointKey, threading.Lock] = {}
        self._stores: dict[_StoreKey, StoreContext] = {}
        self._times = _Times()
        self._caches: dict[int, SstCache] = {}  # by size

    def of(self, value: object) -> StoreContext:
        """Return the context of the protocol's `store` object. Raises: InvalidInputError."""
        if not isinstance(value, dict):
            raise request_error("no store")
        try:
            key = _key_of(value)
            known = self._stores.get(key)
        except (KeyError, TypeError) as e:
            raise request_error("the store lacks a field or has one of a wrong type") from e
        described = {
            name: field for name, field in value.items() if name not in ("local_dir", "hadoop")
        }
        hadoop = handed_over(value.get("hadoop"))
        if known is not None and known.described == described and known.hadoop == hadoop:
            return known
        return self._make(described, hadoop, key, JsonFields(value, request_error, "store"))

    def known(self, value: Any) -> StoreContext | None:
        """Return the context that an earlier `of` made; None if there is none any more."""
        try:
            return self._stores.get(_key_of(value))
        except (KeyError, TypeError):
            return None

    def forget(self, context: StoreContext) -> None:
        """Forget a store, but not when it was collected. Of its Spark checkpoint see `_UNUSED`."""
        with self._lock:
            key = _key_of(context.described)
            if self._stores.get(key) is context:
                del self._stores[key]
                self._times.keep_store(key, context)
            # There may be thousands of stores, and each is closed after each batch.
            if any(known.checkpoint is context.checkpoint for known in self._stores.values()):
                return
            used = {id(known.checkpoint) for known in self._stores.values()}
            unused = [place for place, known in self._checkpoints.items() if id(known) not in used]
            for uri, settings, run in unused[:-_UNUSED]:
                self._times.keep_checkpoint(uri, run, self._checkpoints.pop((uri, settings, run)))
            self._gates = {
                key: gate
                for key, gate in self._gates.items()
                if key in self._checkpoints or gate.locked()
            }

    def _gate(self, key: _CheckpointKey) -> threading.Lock:
        with self._lock:
            return self._gates.setdefault(key, threading.Lock())

    def _make(
        self,
        described: dict[str, Any],
        hadoop: HandedOver,
        key: _StoreKey,
        fields: JsonFields,
    ) -> StoreContext:
        options = described.get("options")
        if not isinstance(options, dict):
            raise request_error("store.options is no object")
        resolved = resolve(options)
        store = StoreId(
            fields.integer("operator"), fields.integer("partition"), fields.string("name")
        )
        settings = storage_settings(resolved, hadoop)
        uri, run_id = roots.checkpoint_of_state(fields.string("root")), fields.string("run_id")
        place = (uri, settings, run_id)
        with self._gate(place):
            # The storage may answer slowly: other queries must not wait for it.
            checkpoint = self._checkpoints.get(place)
            if checkpoint is None:
                checkpoint = CheckpointContext(uri, self._open_storage(uri, settings))
                with self._lock:
                    self._times.take_checkpoint(uri, run_id, checkpoint)
            with self._lock:
                # The last one is that which was needed last.
                self._checkpoints.pop(place, None)
                self._checkpoints[place] = checkpoint
        with self._lock:
            hinted = fields.has("partitions_hint") and not fields.is_null("partitions_hint")
            directory = checkpoint.storage.local_path(layout.store_dir(store))
            cache: SstCache | None = None
            if directory is None and self._local_root is not None:
                size_bytes = option_int(resolved, "storage.cache.size")
                cache = self._caches.get(size_bytes)
                if cache is None:
                    parent = os.path.dirname(os.path.normpath(self._local_root))
                    cache = SstCache(cache_directory(parent), size_bytes)
                    self._caches[size_bytes] = cache
            context = StoreContext(
                checkpoint=checkpoint,
                store=store,
                run_id=run_id,
                spark_format=fields.integer("checkpoint_format", 1, 2),
                partitions_hint=fields.integer("partitions_hint", 1) if hinted else None,
                options=resolved,
                retain_versions=fields.integer("retain_versions", 1),
                maintenance_ms=fields.integer("maintenance_interval_ms"),
                described=described,
                hadoop=hadoop,
                directory=directory,
                sst_cache=cache,
                last_collect_ms=(
                    before.last_collect_ms
                    if (before := self._stores.get(key)) is not None
                    else self._times.take_store(key)
                ),
            )
            self._stores[key] = context
        return context


def handed_over(value: object) -> HandedOver:
    """Return what the shim passes on of Spark's settings for a storage.

    Raises: InvalidInputError.
    """
    if value is None:
        return HandedOver()
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise request_error("hadoop is no object of texts")
    return HandedOver(value)
