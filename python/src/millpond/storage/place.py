"""Where the state of a Spark checkpoint is, if the option storage.uri puts it elsewhere.

    <checkpoint>/millpond/storage.json    {"uri": "s3://bucket/<query id>"}, sealed, written once

That file remembers the place. Each query has a folder of its own, so a session may set storage.uri
for all of its queries.
"""

from __future__ import annotations

import json
import logging
import time

from millpond._version import __version__
from millpond.errors import ConflictError, ErrorKind, FormatError, InvalidInputError, NotFoundError
from millpond.format import layout, spark_names
from millpond.format.roots import parse_root
from millpond.format.sealed import seal, unseal
from millpond.storage.base import Storage, read_if_there
from millpond.storage.same_place import is_same

log = logging.getLogger(__name__)

_KIND = "storage"


def read_place(spark: Storage) -> str | None:
    """Return the URI below which the state is; None if it is in the Spark checkpoint.

    Raises: FormatError, UnsupportedError.
    """
    record = read_if_there(spark, layout.STORAGE_KEY)
    return _uri(record) if record is not None else None


def place_to_read(spark: Storage) -> str | None:
    """Return where the state is, as `read_place`. A savepoint holds its own state: None.

    In a savepoint this ignores `millpond/storage.json`: only a stranger can have put it there.
    """
    record = read_if_there(spark, layout.STORAGE_KEY)
    if record is None:
        return None
    try:
        spark.stat(layout.SAVEPOINT_KEY)
    except NotFoundError:
        return _uri(record)
    return None


def _uri(record: bytes) -> str:
    fields = unseal(_KIND, record, name=layout.STORAGE_KEY, damaged=ErrorKind.FORMAT_DAMAGED)
    return fields.string("uri")


def read_query_id(spark: Storage) -> str | None:
    """Return the id of the query from Spark's file `metadata`; None if it is not there.

    Raises: FormatError: FORMAT_DAMAGED.
    """
    try:
        return query_id_of(spark.read(spark_names.QUERY_METADATA_KEY))
    except NotFoundError:
        return None


def query_id_of(metadata: bytes | str) -> str | None:
    """Return the id of the query from the text of `metadata`.

    Raises: FormatError: FORMAT_DAMAGED.
    """
    try:
        value = json.loads(metadata)["id"]
    except KeyError:
        return None
    except (ValueError, TypeError) as e:
        raise FormatError(
            f"{spark_names.QUERY_METADATA_KEY} is not what Spark writes: {e}",
            kind=ErrorKind.FORMAT_DAMAGED,
        ) from e
    return value if isinstance(value, str) else None


def settle_place(
    spark: Storage, uri: str | None, root_uri: str, *, write: bool = True
) -> str | None:
    """Return where the state is. For a new Spark checkpoint, decide it by `uri` and write it down.
    Later `uri` may be another name of the same place.

    Args:
        spark: the Spark checkpoint.
        uri: option storage.uri.
        root_uri: the URI of the Spark checkpoint, for messages.
        write: False: only say where the state will be.
    Raises: InvalidInputError: STORAGE_MOVED: the state is elsewhere than `uri` says;
        NOT_A_CHECKPOINT: the query's id is not there; INVALID_ARGUMENT: as `place_of`.
    """
    place = read_place(spark)
    if uri is None:
        return place
    if place is None:
        place = _new_place(spark, uri, root_uri)
        if write:
            place = _write_place(spark, place, root_uri)
    if not is_same(place, place_of(uri, place.rpartition("/")[2])):
        raise InvalidInputError(
            f"storage.uri is {uri}, but the Spark checkpoint {root_uri} keeps its state below"
            f" {place}",
            kind=ErrorKind.STORAGE_MOVED,
        )
    return place


def _new_place(spark: Storage, uri: str, root_uri: str) -> str:
    try:
        spark.stat(layout.FORMAT_KEY)
    except NotFoundError:
        pass
    else:
        raise InvalidInputError(
            f"storage.uri is {uri}, but the Spark checkpoint {root_uri} keeps its state in itself",
            kind=ErrorKind.STORAGE_MOVED,
        )
    query_id = read_query_id(spark)
    if query_id is None:
        raise InvalidInputError(
            f"storage.uri is set, but there is no {root_uri}/{spark_names.QUERY_METADATA_KEY},"
            " which holds the id of the query",
            kind=ErrorKind.NOT_A_CHECKPOINT,
            hint="Put the checkpointLocation where every executor can read it.",
        )
    return place_of(uri, query_id)


def place_of(uri: str, query_id: str) -> str:
    """Return where a query's state is below `uri`, the option storage.uri.

    Raises: InvalidInputError: INVALID_ARGUMENT: `uri` is no absolute path or URI.
    """
    parse_root(uri)
    return f"{uri.rstrip('/')}/{layout.check_relative(query_id)}"


def place_record(place: str) -> bytes:
    """Return `millpond/storage.json` of a Spark checkpoint whose state is at `place`."""
    body = {
        "uri": place,
        "required_features": [],
        "created_by": f"millpond {__version__}",
        "created_ms": time.time_ns() // 1_000_000,
    }
    return seal(_KIND, body)


def _write_place(spark: Storage, place: str, root_uri: str) -> str:
    try:
        spark.put_bytes(layout.STORAGE_KEY, place_record(place), if_absent=True)
    except ConflictError:
        # Another executor was first. Its record decides.
        return read_place(spark) or place
    log.info("the state of %s goes to %s", root_uri, place)
    return place
