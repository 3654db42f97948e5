"""`adopt` and `release`: each makes a new Spark checkpoint with the same state in the stores of
another provider.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from millpond._jvm import command, running_class
from millpond.config import PREFIX
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.format import spark_names
from millpond.local.scratch import scratch_directory
from millpond.operations.migrate import jvm, plan
from millpond.operations.migrate.plan import HDFS, PROVIDERS, ROCKSDB, Ids, Side
from millpond.operations.output.atomic_target import AtomicTarget, building
from millpond.operations.output.copying import damaged_state, write_image
from millpond.operations.savepoint.create import origin_and_new, pin_of
from millpond.operations.savepoint.restored_image import KEEP, restored
from millpond.query.erasing import read_erasures, refuse_erased
from millpond.query.from_checkpoint import spark_image
from millpond.query.image import Image
from millpond.query.whole import checkpoint_image
from millpond.spark import live
from millpond.spark.session import PROVIDER_CLASS, running_option
from millpond.storage import LocalStorage, Storage, open_checkpoint, open_storage
from millpond.storage.given import given, given_conf, takes_options
from millpond.storage.owner import check_owner

Progress = Callable[[int, int], None]
"""Called with the stores that are copied and the stores in all."""

_MAIN = "org.apache.spark.sql.millpond.tools.ProviderCopy"
_THREADS = 4
# By these Spark knows the checkpoint of a query. They are written when the state is there.
_LOGS = (
    f"{spark_names.OFFSETS_DIR}/",
    f"{spark_names.COMMITS_DIR}/",
    spark_names.QUERY_METADATA_KEY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationReport:
    """What `adopt` or `release` wrote, or would write. `to_json` is the contract of `--json`."""

    origin: str
    checkpoint: str  # the new one
    provider_before: str  # rocksdb, hdfs, or a class
    provider: str
    batch: int  # the last committed one; the query goes on with the next
    query_id: str | None
    checkpoint_format: int  # Spark's, of the new one
    operators: int
    stores: int
    rows: int  # -1: of a dry run of `release`, not counted
    bytes_written: int  # 0 in a dry run
    row_bytes: int  # of keys and values, in a dry run of `adopt`; else 0
    dry_run: bool
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@takes_options
def adopt(
    checkpoint: str | os.PathLike[str],
    new_checkpoint: str | os.PathLike[str],
    *,
    batch: int | None = None,
    new_query_id: bool = False,
    max_parallelism: int | None = None,
    conf: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, object] | None = None,
) -> MigrationReport:
    """Take over a Spark checkpoint whose state is in one of Spark's own stores. A query goes on
    from the new one with Millpond.

    The old one is only read. Stop its query first: what it does afterwards is not taken over. A
    query that does a batch meanwhile is noticed. One that did a batch just now is warned of.

    Args:
        checkpoint: path or URI of the Spark checkpoint, which Spark can read.
        new_checkpoint: path or URI that does not exist yet, or is an empty directory. It is
            complete or absent, whatever happens.
        batch: a committed one that Spark still keeps; None: the last.
        new_query_id: True: a trial beside the old query, not a move. Sinks that know queries by id
            take it for another query.
        max_parallelism: number of key groups, a multiple of the partitions; None: what the session
            that runs says, else the default.
        conf: settings of Spark for a JVM of its own, which copies: `spark.hadoop.*` for storage,
            `spark.driver.memory` for its heap. None: the JVM of the session that runs in this
            process copies, if there is one.
        dry_run: read Spark's logs and schemas, count the rows, write nothing.
        progress: called with the stores that are copied, and the stores in all.
        options: of the storages, by name.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT, TARGET_NOT_EMPTY, MAX_PARALLELISM_INVALID;
            INVALID_ARGUMENT: Millpond has the state already.
        ConflictError: QUERY_RUNNING: it did a batch meanwhile, and `new_query_id` is not set.
        NotFoundError: BATCH_NOT_COMMITTED, VERSION_EXPIRED. FormatError: FORMAT_DAMAGED.
            UnavailableError: storage.
        UnsupportedError: UNSUPPORTED: the state is in neither of Spark's stores, or there is no
            java; SHIM_MISSING,
            SHIM_VERSION_MISMATCH.
    """
    if given().settings.uri is not None:
        raise InvalidInputError(
            "adopt puts the state into the new checkpoint, and storage.uri names another place",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Leave it out; then move the state: millpond fork --keep-query-id --storage-uri.",
        )
    origin, new_root = origin_and_new(checkpoint, new_checkpoint)
    source = open_storage(origin)
    logs = live.read_logs(source)  # first: a batch that comes while the image is read counts
    image = spark_image(source, origin, batch)
    if image.provider == PROVIDER_CLASS:
        raise InvalidInputError(
            f"{origin} has its state in Millpond already", hint="To copy it: millpond fork."
        )
    if image.provider is None or image.provider not in PROVIDERS.values():
        raise UnsupportedError(
            f"{origin}: the state was written by"
            f" {image.provider or 'a provider that its offset log does not name'}",
            hint="State of Spark's RocksDB and HDFS-backed stores can be taken over.",
        )
    # Millpond refuses a query whose session sets another number than the state has.
    groups = (
        str(max_parallelism) if max_parallelism is not None else running_option("maxParallelism")
    )
    pinned = {f"{PREFIX}maxParallelism": groups} if groups is not None else {}
    before = Side(provider=image.provider, root=origin, conf={})
    after = Side(provider=PROVIDER_CLASS, root=new_root, conf={**_own(), **pinned})

    def check() -> None:
        live.refuse_moved(source, origin, logs)

    report = _migrate(
        source,
        image,
        before,
        after,
        nullcontext(),
        new_query_id,
        conf or {},
        dry_run,
        progress,
        check=None if new_query_id else check,
    )
    return report if new_query_id else replace(report, warnings=live.warning(origin, logs))


@takes_options
def release(
    checkpoint: str | os.PathLike[str],
    new_checkpoint: str | os.PathLike[str],
    *,
    provider: str,
    batch: int | None = None,
    new_query_id: bool = False,
    conf: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, object] | None = None,
) -> MigrationReport:
    """Hand a query back to one of Spark's own stores. The query goes on from the new Spark
    checkpoint without Millpond.

    Args:
        provider: `rocksdb` or `hdfs`.
        Others: as for `adopt`, from and to the other way round.
    Raises: as `adopt`, but ConflictError: QUERY_RUNNING, COMMAND_RUNNING: the query runs or has run
        meanwhile, or a command changes it, and neither `new_query_id` nor `dry_run` is set;
        ERASE_UNFINISHED: a key was erased meanwhile; UnsupportedError: FOREIGN_CHECKPOINT;
        UNSUPPORTED: the state does not fit into that store.
    """
    if provider not in PROVIDERS:
        raise InvalidInputError(
            f"provider: {provider!r} is neither {ROCKSDB} nor {HDFS}",
            hint="Name the store that the query shall have: rocksdb or hdfs.",
        )
    origin, new_root = origin_and_new(checkpoint, new_checkpoint)
    source = open_checkpoint(origin)
    check_owner(source, origin)
    moves = not new_query_id and not dry_run
    if moves:
        live.refuse_beating(source, origin)
    logs = live.read_logs(source)  # before the image: a batch that comes while it is read counts
    erased = read_erasures(source)
    image = checkpoint_image(source, origin, batch)
    plan.check_fits(image, PROVIDERS[provider])
    before = Side(provider=PROVIDER_CLASS, root=origin, conf=_own())
    # With changelogs Spark writes the snapshot some time later; without, with the commit.
    changelog = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    after = Side(provider=PROVIDERS[provider], root=new_root, conf={changelog: "false"})
    pin = pin_of(source, image) if not dry_run else nullcontext()

    def check() -> None:
        if moves:
            live.refuse_beating(source, origin)
            live.refuse_moved(source, origin, logs)  # a run may have come and gone
        refuse_erased(source, origin, erased)

    return _migrate(
        source,
        image,
        before,
        after,
        pin,
        new_query_id,
        conf or {},
        dry_run,
        progress,
        check=check,
    )


def _own() -> dict[str, str]:
    """Return the settings of Millpond's side, whose agent reaches storages as this process does."""
    return {**given_conf(), f"{PREFIX}agent.python": sys.executable}


def _migrate(
    source: Storage,
    image: Image,
    before: Side,
    after: Side,
    pin: AbstractContextManager[object],
    new_query_id: bool,
    conf: Mapping[str, str],
    dry_run: bool,
    progress: Progress | None,
    check: Callable[[], None] | None = None,
) -> MigrationReport:
    # A session's JVM copies with the session's settings for storage. Settings that are given are
    # for a JVM of their own.
    copier = running_class(_MAIN) if not conf else None
    line = command(_MAIN, conf) if copier is None else None
    threads = min(_THREADS, os.cpu_count() or 1)
    query_id = str(uuid.uuid4()) if new_query_id else image.query_id
    numbers = {op.operator: op.operator for op in image.operators}
    new_root = after.root
    counted = _Counted()
    bytes_written = 0

    def described(ids: Ids | None) -> Image:
        moved = plan.image_for(image, after.provider, ids)
        return restored(moved, new_root, numbers, offsets=KEEP, query_id=query_id)

    if dry_run and image.provider != PROVIDER_CLASS:
        with scratch_directory("migrating") as local:
            job = plan.request(
                image,
                before,
                after,
                threads=threads,
                spark_conf={"spark.local.dir": local, **conf},
                count_only=True,
            )
            if job["stores"]:
                answers = jvm.answers(line, job) if line else jvm.answers_in_session(copier, job)
                counted.take(answers, len(job["stores"]), progress)
    else:
        # A dry run too raises what is wrong with the request.
        plan.request(image, before, after, threads=threads, spark_conf=conf)
    if not dry_run:
        with pin, building(new_root) as target, scratch_directory("migrating") as local:
            if isinstance(target.storage, LocalStorage):
                after = replace(after, root=target.storage.root)  # until it gets its name
            _write(source, target, described(None), logs=False)
            if image.operators:
                job = plan.request(
                    image,
                    before,
                    after,
                    threads=threads,
                    spark_conf={"spark.local.dir": local, **conf},
                )
                answers = jvm.answers(line, job) if line else jvm.answers_in_session(copier, job)
                counted.take(answers, len(job["stores"]), progress)
            _write(source, target, described(counted.ids), logs=True)
            if check is not None:
                check()
            bytes_written = sum(info.size_bytes for info in target.storage.list(""))
    return MigrationReport(
        origin=before.root,
        checkpoint=new_root,
        provider_before=plan.provider_name(before.provider),
        provider=plan.provider_name(after.provider),
        batch=image.batch,
        query_id=query_id,
        checkpoint_format=plan.checkpoint_format(image, after.provider),
        operators=len(image.operators),
        stores=sum(len(op.stores) for op in image.operators),
        rows=-1 if dry_run and image.provider == PROVIDER_CLASS else counted.rows,
        bytes_written=bytes_written,
        row_bytes=counted.bytes,
        dry_run=dry_run,
    )


class _Counted:
    """What the JVM has copied, by its own account."""

    def __init__(self) -> None:
        self.rows = self.bytes = 0
        self.ids: dict[tuple[int, int, str], str] = {}

    def take(
        self, answers: Iterable[dict[str, Any]], stores: int, progress: Progress | None
    ) -> None:
        for done, answer in enumerate(answers, 1):
            self.rows += answer["rows"]
            self.bytes += answer.get("bytes", 0)
            if "id" in answer:
                self.ids[answer["operator"], answer["partition"], answer["store"]] = answer["id"]
            if progress is not None:
                progress(done, stores)


def _write(source: Storage, target: AtomicTarget, image: Image, *, logs: bool) -> None:
    texts = {key: text for key, text in image.texts.items() if key.startswith(_LOGS) == logs}
    write_image(
        replace(image, texts=texts), source, target, link=False, verify=False, damaged=damaged_state
    )
