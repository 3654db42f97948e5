"""Builds and parses all names of Millpond's: keys relative to the Spark checkpoint.

No other module does. `spark_names.py` has those of Spark's own files. `roots.py` parses the URI of
the Spark checkpoint itself.

    <checkpoint>/
        metadata                             Spark's: id of the query
        offsets/<batch>  commits/<batch>     Spark's logs
        sources/<source>/...                 Spark's: a source's own log
        millpond/format.json                 max parallelism, base, format version
        millpond/pins/<name>.json            files that collection leaves alone
        millpond/gc/<op>.json                SSTs that a sweep saw without a manifest
        millpond/gc/<op>.<kind>-<uuid>.json  what a sweep deletes, or an erasure has erased
        millpond/rescale.json                a rescale that has not ended
        millpond/erase.json                  an erasure that has not ended
        millpond/claim                       somebody writes a new checkpoint, or a savepoint
        millpond/operators/<op>              Spark checkpoint format 1: the query has this operator
        millpond/asked.json                  how many partitions the last start asked for
        millpond/sink.json                   where the query writes to, by its last start
        millpond/running/<run>.json          a query runs
        millpond/running/command-<id>.json   a command is at work
        millpond/running/command-<id>.hold   no other command took over from that one
        millpond/history/<start>-<run>-<part>-<batches>.jsonl.gz    Spark's progress
        millpond/scratch/<name>              rows on their way through Spark
        millpond/storage.json                where Millpond's own files are, if not here
        millpond/owner.json                  beside those files: their Spark checkpoint
        millpond/.staging-<uuid4 hex>        a start of the query tried to write
        state/<op>/_metadata/...             Spark's: operator and schemas
        state/<op>/_stateSchema/<store>/...  Spark's: schemas of operators with column families
        state/<op>/<partition>[/<store>]/    `<store>` is omitted for the store named "default"
            <version>[_<id>].changelog       with `_<id>` in Spark checkpoint format 2
            <version>[_<id>].manifest
            sst/<uuid4 hex>.sst
            .staging-<uuid4 hex>             not yet published

A savepoint has the same tree, and two files more. A canonical savepoint has tables instead of
stores: `table_names.py`.

    <savepoint>/
        savepoint.json                       its index
        millpond/deleted.json                the index, while the savepoint is deleted
        tables/...

Keys use `/`, never start with it, and never hold `.` or `..` segments.

Source: docs/reference/format.md.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from millpond.errors import ErrorKind, FormatError, InvalidInputError
from millpond.model.ids import DEFAULT_STORE, StoreId, VersionId, valid_store_name

FORMAT_KEY = "millpond/format.json"
STORAGE_KEY = "millpond/storage.json"
OWNER_KEY = "millpond/owner.json"
RESCALE_JOURNAL_KEY = "millpond/rescale.json"
ERASE_JOURNAL_KEY = "millpond/erase.json"
ASKED_KEY = "millpond/asked.json"
SINK_KEY = "millpond/sink.json"
MILLPOND_DIR = "millpond"
PINS_PREFIX = "millpond/pins/"
GC_PREFIX = "millpond/gc/"
RUNNING_PREFIX = "millpond/running/"
COMMAND_PREFIX = "command-"  # of a name below RUNNING_PREFIX
RUNNING_COMMANDS_PREFIX = RUNNING_PREFIX + COMMAND_PREFIX
OPERATORS_PREFIX = "millpond/operators/"
HISTORY_PREFIX = "millpond/history/"
SCRATCH_PREFIX = "millpond/scratch/"
STATE_DIR = "state"
STATE_PREFIX = "state/"
SST_DIR = "sst"
SPARK_METADATA_DIR = "_metadata"  # Spark's, beside stores and in them
SAVEPOINT_KEY = "savepoint.json"
# Whoever writes a savepoint or a new Spark checkpoint holds it, on storage that cannot rename.
CLAIM_KEY = "millpond/claim"
# The index of a savepoint that is being deleted there.
DELETED_KEY = "millpond/deleted.json"
STAGING_PREFIX = ".staging-"

NUMBER = r"(?:0|[1-9][0-9]{0,17})"  # as names have it
_VERSIONED = re.compile(rf"({NUMBER})(?:_([0-9a-f]{{16}}))?\.(changelog|manifest)")
_HISTORY = re.compile(
    r"([0-9]{13,})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{6,})-([0-9]{4,})"
    r"\.jsonl\.gz"
)
_SST = re.compile(r"([0-9a-f]{32})\.sst")
_STAGING = re.compile(r"\.staging-([0-9a-f]{32})")
_NUMBER_ONLY = re.compile(NUMBER)
_LOCAL_SST = re.compile(r"[0-9]{1,20}\.sst")
_ROCKSDB_MANIFEST = re.compile(r"MANIFEST-[0-9]{1,20}")
_RESCALE_PIN = re.compile(rf"millpond/pins/rescale-({NUMBER})-({NUMBER})\.json")
_ANNOUNCEMENT = re.compile(rf"{GC_PREFIX}{NUMBER}\.([a-z]+)-[^/]*\.json")


# ---- names inside a store ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangelogFile:
    """`<version>.changelog` (id "", Spark checkpoint format 1) or `<version>_<id>.changelog`
    (format 2).
    """

    version: VersionId


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """`<version>.manifest` (id "", Spark checkpoint format 1) or `<version>_<id>.manifest`
    (format 2).
    """

    version: VersionId


@dataclass(frozen=True, slots=True)
class SstFile:
    """`sst/<uuid>.sst`."""

    uuid: str


@dataclass(frozen=True, slots=True)
class StagingFile:
    """`.staging-<uuid>`, in the store's directory or in `sst/`: a file not yet published."""

    uuid: str


StoreFile = ChangelogFile | ManifestFile | SstFile | StagingFile


def changelog_name(version: VersionId, spark_format: int) -> str:
    """Return the changelog's file name in its store's directory.

    In Spark checkpoint format 1 only the content of the file has the id.
    """
    return _versioned_name(version, spark_format, "changelog")


def manifest_name(version: VersionId, spark_format: int) -> str:
    """Return the manifest's file name in its store's directory.

    In Spark checkpoint format 1 only the content of the file has the id.
    """
    return _versioned_name(version, spark_format, "manifest")


def _versioned_name(version: VersionId, spark_format: int, suffix: str) -> str:
    if version.version == 0:
        raise InvalidInputError(f"version 0 is empty: it has no {suffix}")
    if spark_format < 2:
        return f"{version.version}.{suffix}"
    if not version.id:
        raise InvalidInputError(
            f"version {version.version} has no id: Spark checkpoint format 2 names files by id"
        )
    return f"{version.version}_{version.id}.{suffix}"


def new_sst_name() -> str:
    """Return a fresh key of an SST relative to its store's directory: `sst/<uuid4 hex>.sst`."""
    return f"{SST_DIR}/{uuid.uuid4().hex}.sst"


def new_staging_name() -> str:
    """Return a fresh name for a file not yet published: `.staging-<uuid4 hex>`."""
    return STAGING_PREFIX + uuid.uuid4().hex


def new_probe_key() -> str:
    """Return a fresh key, `millpond/.staging-<uuid4 hex>`.

    Whoever writes such a file only looks whether it can, or when, and deletes it at once.
    """
    return f"{MILLPOND_DIR}/{new_staging_name()}"


def parse_store_file(name: str) -> StoreFile | None:
    """Return which of Millpond's files `name` is; None if it is none of them.

    Args:
        name: relative to the store's directory.
    """
    if match := _VERSIONED.fullmatch(name):
        if match[1] == "0":
            return None
        version = VersionId(int(match[1]), match[2] or "")
        return ChangelogFile(version) if match[3] == "changelog" else ManifestFile(version)
    directory, _, last = name.rpartition("/")
    if directory == SST_DIR and (match := _SST.fullmatch(last)):
        return SstFile(match[1])
    if directory in ("", SST_DIR) and (match := _STAGING.fullmatch(last)):
        return StagingFile(match[1])
    return None


# ---- keys relative to the Spark checkpoint -------------------------------------------------------


def operator_dir(operator: int) -> str:
    """Return `state/<op>`."""
    return f"{STATE_DIR}/{operator}"


def store_dir(store: StoreId) -> str:
    """Return `state/<op>/<partition>[/<store>]`, without a slash at the end."""
    path = f"{operator_dir(store.operator)}/{store.partition}"
    return path if store.name == DEFAULT_STORE else f"{path}/{store.name}"


def store_prefix(store: StoreId) -> str:
    """Return the store's directory with a slash at the end, for `Storage.list`.

    The directory of a partition's default store contains the directories of its named stores.
    `parse_key` tells which store a listed key belongs to.
    """
    return store_dir(store) + "/"


def changelog_key(store: StoreId, version: VersionId, spark_format: int) -> str:
    """Return the key of a changelog."""
    return f"{store_dir(store)}/{changelog_name(version, spark_format)}"


def manifest_key(store: StoreId, version: VersionId, spark_format: int) -> str:
    """Return the key of a manifest."""
    return f"{store_dir(store)}/{manifest_name(version, spark_format)}"


def store_key(store: StoreId, name: str) -> str:
    """Return the key of a file in the store's directory.

    Args:
        name: relative to that directory; of an SST, the `key` of its manifest entry.
    Raises: FormatError: UNSAFE_PATH.
    """
    return f"{store_dir(store)}/{check_relative(name)}"


def gc_candidates_key(operator: int) -> str:
    """Return `millpond/gc/<op>.json`: which SSTs sweeps of the operator saw without a manifest."""
    return f"{GC_PREFIX}{operator}.json"


def gc_announcements_prefix(operator: int) -> str:
    """Return the prefix of what sweeps and erasures of the operator announce.

    That of `gc_candidates_key` has it, too.
    """
    return f"{GC_PREFIX}{operator}."


def new_gc_announcement_key(operator: int, kind: str) -> str:
    """Return a fresh key, `millpond/gc/<op>.<kind>-<uuid4 hex>.json`.

    Args:
        kind: lower-case letters.
    """
    return f"{gc_announcements_prefix(operator)}{kind}-{uuid.uuid4().hex}.json"


def parse_gc_announcement(key: str) -> str | None:
    """Return the kind of a key that `new_gc_announcement_key` made, or None."""
    match = _ANNOUNCEMENT.fullmatch(key)
    return match[1] if match else None


def running_key(name: str) -> str:
    """Return `millpond/running/<name>.json`: the heartbeat of a run, or of a command."""
    return f"{RUNNING_PREFIX}{name}.json"


def hold_key(name: str) -> str:
    """Return `millpond/running/<name>.hold`: a command has what it works on for itself."""
    return f"{RUNNING_PREFIX}{name}.hold"


def parse_running(key: str) -> str | None:
    """Return the name of a key that `running_key` made, or None.

    Hadoop's sidecars and temporary files, with a dot, are none.
    """
    name = key.removeprefix(RUNNING_PREFIX)
    is_one = name != key and name.endswith(".json") and not name.startswith(".")
    return name.removesuffix(".json") if is_one else None


def rescale_pin_key(operator: int, batch: int) -> str:
    """Return the key of a rescale's pin. It keeps the changelogs that composed manifests name."""
    return f"{PINS_PREFIX}rescale-{operator}-{batch}.json"


def parse_rescale_pin(key: str) -> tuple[int, int] | None:
    """Return operator and batch of a key that `rescale_pin_key` made, or None."""
    match = _RESCALE_PIN.fullmatch(key)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True, order=True)
class HistoryFile:
    """`millpond/history/<start>-<run>-<part>-<batches>.jsonl.gz`. They sort by time; their names
    do not: numbers have more digits once they need them.

    A file of a part with more batches replaces the one with fewer.
    """

    start_ms: int  # of the run, and above those of the runs before it
    run_id: str
    part: int  # from 0
    batches: int


def parse_history(key: str) -> HistoryFile | None:
    """Return what the name of a file of the history says; None: it is none of these files."""
    name = key.removeprefix(HISTORY_PREFIX)
    match = _HISTORY.fullmatch(name) if name != key else None
    return HistoryFile(int(match[1]), match[2], int(match[3]), int(match[4])) if match else None


def operator_record_key(operator: int) -> str:
    """Return `millpond/operators/<op>`: the file says that the query has this operator."""
    return f"{OPERATORS_PREFIX}{operator}"


def parse_operator_record(key: str) -> int | None:
    """Return the operator of a key that `operator_record_key` made, or None."""
    name = key.removeprefix(OPERATORS_PREFIX)
    return int(name) if name != key and _NUMBER_ONLY.fullmatch(name) else None


def pin_key(name: str) -> str:
    """Return `millpond/pins/<name>.json`."""
    return check_relative(f"{PINS_PREFIX}{name}.json")


def scratch_key(name: str) -> str:
    """Return `millpond/scratch/<name>`, for a file that exists only while a command works."""
    return check_relative(f"{SCRATCH_PREFIX}{name}")


def file_of(key: str) -> StoreFile | None:
    """Return which of Millpond's files in a store `key` names; None if it is none of them."""
    parsed = parse_key(key)
    return parsed.file if parsed is not None else None


def operator_of(key: str) -> int | None:
    """Return the operator of a key below `state/`, Spark's own files included; else None."""
    parts = key.split("/")
    return (
        int(parts[1])
        if len(parts) > 2 and parts[0] == STATE_DIR and _NUMBER_ONLY.fullmatch(parts[1])
        else None
    )


def with_operator(key: str, operator: int) -> str:
    """Return the key of the same file for another operator. `key` must lie below `state/`."""
    parts = key.split("/")
    return "/".join([parts[0], str(operator), *parts[2:]])


@dataclass(frozen=True, slots=True)
class StoreKey:
    """A parsed key below `state/`."""

    store: StoreId
    name: str  # relative to the store's directory
    file: StoreFile | None  # None: it is none of Millpond's files


def parse_key(key: str) -> StoreKey | None:
    """Return the store and the file of a key; None if it lies in no store's directory.

    Spark's `_metadata` directories belong to no store.
    """
    parts = key.split("/")
    if (
        len(parts) < 4
        or parts[0] != STATE_DIR
        or not all(_NUMBER_ONLY.fullmatch(p) for p in parts[1:3])
    ):
        return None
    operator, partition, rest = int(parts[1]), int(parts[2]), parts[3:]
    if rest[0] == SPARK_METADATA_DIR:
        return None
    name = DEFAULT_STORE
    if len(rest) > 1 and rest[0] != SST_DIR:
        if not valid_store_name(rest[0]) or rest[1] == SPARK_METADATA_DIR:
            return None
        name, rest = rest[0], rest[1:]
    relative = "/".join(rest)
    return StoreKey(StoreId(operator, partition, name), relative, parse_store_file(relative))


# ---- names that come from stored files -----------------------------------------------------------


def check_relative(key: str) -> str:
    """Return `key` if it is a plain relative path.

    It must have no empty, `.` or `..` segment, no backslash and no control character.

    Raises: FormatError: UNSAFE_PATH.
    """
    safe = bool(key) and all(part not in ("", ".", "..") for part in key.split("/"))
    if not safe or "\\" in key or any(ord(c) < 32 or ord(c) == 127 for c in key):
        raise FormatError(f"unsafe path {key!r}", kind=ErrorKind.UNSAFE_PATH)
    return key


def check_sst_key(key: str) -> str:
    """Return `key` if it is `sst/<32 hex digits>.sst`. Raises: FormatError: UNSAFE_PATH."""
    if not isinstance(parse_store_file(key), SstFile):
        raise FormatError(f"unsafe path of an SST: {key!r}", kind=ErrorKind.UNSAFE_PATH)
    return key


def check_local_sst_name(name: str) -> str:
    """Return `name` if it is RocksDB's name of an SST, such as `000012.sst`.

    Raises: FormatError: UNSAFE_PATH.
    """
    if not _LOCAL_SST.fullmatch(name):
        raise FormatError(f"unsafe local name of an SST: {name!r}", kind=ErrorKind.UNSAFE_PATH)
    return name


def check_rocksdb_manifest_name(name: str) -> str:
    """Return `name` if it is `MANIFEST-<digits>`. Raises: FormatError: UNSAFE_PATH."""
    if not _ROCKSDB_MANIFEST.fullmatch(name):
        raise FormatError(
            f"unsafe name of a RocksDB manifest: {name!r}", kind=ErrorKind.UNSAFE_PATH
        )
    return name
