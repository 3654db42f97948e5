"""Builds and parses the names of Spark's own files: keys relative to the Spark checkpoint.

    <checkpoint>/
        metadata                             id of the query
        offsets/<batch>  commits/<batch>     its logs
        sources/<source>/...                 a source's own log
        state/<op>/_metadata/...             an operator, and its schemas
        state/<op>/_stateSchema/<store>/...  schemas of operators with column families
        state/<op>/0[/<store>]/_metadata/schema    the schema of another operator's store

The logs of file sources and of file sinks have compact entries. That of a sink is in its directory:

    <checkpoint>/sources/<source>/<entry>[.compact]
    <sink>/_spark_metadata/<batch>[.compact]

On a local file system Hadoop keeps a sidecar beside each file: `.<name>.crc`.

`layout.py` has the names of Millpond's files, which lie between these.
"""

from __future__ import annotations

import re

from millpond.errors import ErrorKind, FormatError
from millpond.format.layout import (
    ASKED_KEY,
    HISTORY_PREFIX,
    MILLPOND_DIR,
    NUMBER,
    RUNNING_PREFIX,
    SINK_KEY,
    SPARK_METADATA_DIR,
    STATE_DIR,
    STORAGE_KEY,
    check_relative,
    operator_dir,
    store_dir,
)
from millpond.model.ids import StoreId, valid_store_name

QUERY_METADATA_KEY = "metadata"
OFFSETS_DIR = "offsets"
COMMITS_DIR = "commits"
SOURCES_DIR = "sources"
SOURCES_PREFIX = "sources/"
SINK_LOG_PREFIX = "_spark_metadata/"
_LOGS = (OFFSETS_DIR, COMMITS_DIR)
_OF_LOGS = (QUERY_METADATA_KEY, *_LOGS, SOURCES_DIR)
_STATE_SCHEMA_DIR = "_stateSchema"
_COMPACT = ".compact"
_OF_DRIVER = (RUNNING_PREFIX, HISTORY_PREFIX)

_NUMBER_ONLY = re.compile(NUMBER)
_OPERATORS = re.compile(
    rf"state/{NUMBER}/(?:_metadata/(?:metadata|v2/{NUMBER})|_stateSchema/([^/]+)/[^/.][^/]*"
    r"|0(?:/([^/]+))?/_metadata/schema)"
)


# ---- logs ----------------------------------------------------------------------------------------


def offsets_key(batch: int) -> str:
    """Return `offsets/<batch>`."""
    return f"{OFFSETS_DIR}/{batch}"


def commits_key(batch: int) -> str:
    """Return `commits/<batch>`."""
    return f"{COMMITS_DIR}/{batch}"


def parse_batch(name: str) -> int | None:
    """Return the number of an entry of Spark's `offsets` or `commits` log; None if it is no entry.

    Args:
        name: the last segment of its key.
    """
    return int(name) if _NUMBER_ONLY.fullmatch(name) else None


def log_entry(key: str) -> tuple[str, int] | None:
    """Return the log, `OFFSETS_DIR` or `COMMITS_DIR`, and the batch of an entry; None: it is
    none.
    """
    log, _, name = key.partition("/")
    batch = parse_batch(name) if log in _LOGS else None
    return (log, batch) if batch is not None else None


def is_of_logs(key: str) -> bool:
    """Return whether `key` is the query's metadata, or lies in its logs or its sources' logs."""
    return key.partition("/")[0] in _OF_LOGS


def source_prefix(source: str) -> str:
    """Return `sources/<source>/`: Spark's folder for the source's own log.

    Args:
        source: its number or name.
    """
    return f"{SOURCES_PREFIX}{check_relative(source)}/"


def is_of_source(key: str) -> bool:
    """Return whether `key` is a file of a source. Hadoop's sidecars and temporary files are not."""
    parts = key.split("/")
    return len(parts) > 2 and parts[0] == SOURCES_DIR and not parts[-1].startswith(".")


# ---- operators -----------------------------------------------------------------------------------


def operator_metadata_dir(operator: int) -> str:
    """Return `state/<op>/_metadata`."""
    return f"{operator_dir(operator)}/{SPARK_METADATA_DIR}"


def operator_metadata_v1_key(operator: int) -> str:
    """Return the key of Spark's operator metadata, version 1: `state/<op>/_metadata/metadata`."""
    return f"{operator_metadata_dir(operator)}/metadata"


def operator_metadata_v2_prefix(operator: int) -> str:
    """Return the prefix of Spark's operator metadata, version 2: `state/<op>/_metadata/v2/`.

    The batch follows it.
    """
    return f"{operator_metadata_dir(operator)}/v2/"


def state_schema_key(store: StoreId) -> str:
    """Return the key of Spark's state schema of a store without column families.

    Spark writes one in partition 0 only.
    """
    return f"{store_dir(store)}/{SPARK_METADATA_DIR}/schema"


def relative_state_schema(path: str, operator: int) -> str:
    """Return the key of a schema file.

    Args:
        path: as operator metadata names it: an absolute path, or a key in a savepoint.
    Raises: FormatError: UNSAFE_PATH: it is no path of a schema file.
    """
    parts = path.split("/")[-5:]
    if (
        len(parts) < 5
        or parts[0] != STATE_DIR
        or parts[2] != _STATE_SCHEMA_DIR
        or not valid_store_name(parts[3])
    ):
        raise FormatError(f"no path of a schema file: {path!r}", kind=ErrorKind.UNSAFE_PATH)
    return check_relative("/".join([STATE_DIR, str(operator), *parts[2:]]))


def is_of_operator(key: str) -> bool:
    """Return whether `key` is Spark's metadata of an operator, or a schema of its state."""
    match = _OPERATORS.fullmatch(key)
    return match is not None and all(
        name is None or valid_store_name(name) for name in match.groups()
    )


# ---- the logs of file sources and file sinks -----------------------------------------------------


def file_log_entry(number: int, interval: int) -> str:
    """Return the name of an entry of a log of files: `<number>`, or `<number>.compact`.

    Args:
        interval: every how many entries one is compact.
    """
    return f"{number}{_COMPACT if (number + 1) % interval == 0 else ''}"


def parse_file_log_entry(name: str) -> int | None:
    """Return the number of an entry of a log of files; None if `name` is no entry."""
    return parse_batch(name.removesuffix(_COMPACT))


def is_compact(name: str) -> bool:
    """Return whether an entry of a log of files is a compact one."""
    return name.endswith(_COMPACT)


def sink_entry_key(name: str) -> str:
    """Return the key, relative to the sink, of an entry of its log."""
    return SINK_LOG_PREFIX + name


def parse_sink_entry_key(key: str) -> int | None:
    """Return the number of an entry of a file sink's log; None if `key` is that of no entry.

    Args:
        key: relative to the sink.
    """
    name = key.removeprefix(SINK_LOG_PREFIX)
    return parse_file_log_entry(name) if name != key else None


def check_sink_entry_key(key: str, last: int) -> str:
    """Return `key` if it is that of an entry of a file sink's log, numbered `last` at most.

    Raises: FormatError: UNSAFE_PATH.
    """
    number = parse_sink_entry_key(key)
    if number is None or number > last:
        raise FormatError(
            f"no entry of a file sink's log up to {last}: {key!r}", kind=ErrorKind.UNSAFE_PATH
        )
    return key


# ---- beside Millpond's files ---------------------------------------------------------------------


def crc_key(key: str) -> str:
    """Return the key of the sidecar with which Hadoop checks a local file: `a/b` -> `a/.b.crc`."""
    directory, slash, name = key.rpartition("/")
    return f"{directory}{slash}.{name}.crc"


def is_sparks(key: str) -> bool:
    """Return whether `key` stays in the Spark checkpoint if the state is elsewhere.

    Spark's own files stay, the file that tells where the state is, and the files of the driver,
    because the driver knows no other place.
    """
    parts = key.split("/")
    if parts[0] == MILLPOND_DIR:
        return key in (STORAGE_KEY, ASKED_KEY, SINK_KEY) or key.startswith(_OF_DRIVER)
    return (
        parts[0] != STATE_DIR
        or len(parts) < 3
        or parts[2] == _STATE_SCHEMA_DIR
        or SPARK_METADATA_DIR in parts[2:]
    )


def side_of_prefix(prefix: str) -> bool | None:
    """Return what `is_sparks` returns for all keys that start with `prefix`.

    None if it depends on the key.
    """
    parts = prefix.split("/")
    if len(parts) == 1:
        return None
    if parts[0] == MILLPOND_DIR:
        return prefix.startswith(_OF_DRIVER) if len(parts) > 2 else None
    if parts[0] != STATE_DIR:
        return True
    # Nobody lists a store's directory for Spark's files in it.
    return None if len(parts) < 4 else parts[2] in (SPARK_METADATA_DIR, _STATE_SCHEMA_DIR)
