"""The rows of an image, whatever form it was saved in."""

from __future__ import annotations

from millpond.query.image import Image
from millpond.query.index import CANONICAL, SavepointIndex
from millpond.query.row_source import NativeRows, RowSource
from millpond.rows import require_tools
from millpond.storage import Storage


def open_rows(storage: Storage, image: Image, index: SavepointIndex | None) -> RowSource:
    """Return the rows of `image`.

    Args:
        index: of the savepoint in `storage`; None: `storage` is the Spark checkpoint of a query.
    Raises: UnsupportedError: UNSUPPORTED: the savepoint is canonical, and the extra `tools` is not
        installed.
    """
    if index is None or index.format != CANONICAL:
        return NativeRows(storage, image)
    require_tools()
    from millpond.state.canonical import CanonicalRows  # start-up time: pyarrow

    return CanonicalRows(storage, index)
