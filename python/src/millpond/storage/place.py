"""Where the state of a Spark checkpoint is, if not in it: the option storage.uri, and `millpond/storage.json` that remembers it.

    <checkpoint>/millpond/storage.json      {"uri": "s3://bucket/prefix/<query id>"}, sealed, written once (put if absent)

Each query gets a folder of its own, so that a session may set storage.uri for all of its queries.
"""

from __future__ import annotations

import logging
import time

from millpond import layout
from millpond._version import __version__
from millpond.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from millpond.layout import parse_root
from millpond.sealed import seal, unseal
from millpond.spark_metadata import read_query_id
from millpond.storage.base import Storage

log = logging.getLogger(__name__)

_KIND = "storage"


def read_place(spark: Storage) -> str | None:
    """Return the URI below which the state is, None if it is in the Spark checkpoint. Raises: FormatError, UnsupportedError."""
    try:
        data = spark.read(layout.STORAGE_KEY)
    except NotFoundError:
        return None
    return unseal(_KIND, data, name=layout.STORAGE_KEY, damaged=ErrorKind.FORMAT_DAMAGED).string(
        "uri"
    )


def place_to_read(spark: Storage) -> str | None:
    """Return as `read_place` where the state is. A savepoint has it in itself, whatever a stranger has put beside its index."""
    place = read_place(spark)
    if place is not None:
        try:
            spark.stat(layout.SAVEPOINT_KEY)
            return None
        except NotFoundError:
            pass
    return place


def settle_place(
    spark: Storage, uri: str | None, root_uri: str, *, write: bool = True
) -> str | None:
    """Return where the state is, and write it down if `uri` says where a new Spark checkpoint's shall be.

    Args:
        spark: the Spark checkpoint.
        uri: option storage.uri.
        root_uri: of the Spark checkpoint, for messages.
        write: False: only say where it will be.
    Raises: InvalidInputError: STORAGE_MOVED: the state is elsewhere than `uri` says; NOT_A_CHECKPOINT: nobody knows whose it is.
    """
    place = read_place(spark)
    if uri is None:
        return place
    if place is None:
        place = _new_place(spark, uri, root_uri)
        if write:
            place = _write_place(spark, place, root_uri)
    if _parent(place) != parse_root(uri):
        raise InvalidInputError(
            f"storage.uri is {uri}, but the Spark checkpoint {root_uri} keeps its state below {place}",
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
            f"storage.uri is set, but {root_uri}/{layout.QUERY_METADATA_KEY}, which tells the id of the query, is not there",
            kind=ErrorKind.NOT_A_CHECKPOINT,
            hint="Put the checkpointLocation where every executor can read it.",
        )
    return place_of(uri, query_id)


def place_of(uri: str, query_id: str) -> str:
    """Return where a query's state is below `uri`, the option storage.uri."""
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
        # Another executor was first; what it wrote rules.
        return read_place(spark) or place
    log.info("the state of %s goes to %s", root_uri, place)
    return place


def _parent(place: str) -> layout.RootUri:
    uri = parse_root(place)
    return layout.RootUri(uri.scheme, uri.authority, uri.path.rpartition("/")[0] or "/")
