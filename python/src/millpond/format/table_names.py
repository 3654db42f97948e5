"""Builds the names of the tables that a canonical savepoint has instead of stores.

<savepoint>/
    tables/<op>/<store>/<column family>/<partition>.parquet
"""

from __future__ import annotations

from urllib.parse import quote

from millpond.format.layout import check_relative
from millpond.model.ids import StoreId

_PREFIX = "tables/"
_MOST_OF_NAME = 255  # bytes that a file system takes, of a file or a directory
_KEPT_OF_NAME = 190  # of a longer one; a dot and a SHA-256 in hex follow


def table_key(store: StoreId, family: str) -> str:
    """Return the key of a column family's table in a canonical savepoint."""
    name = _encoded(family)
    if len(name) > _MOST_OF_NAME:
        from hashlib import sha256  # memory of every agent: it loads OpenSSL

        # No other name has a dot.
        name = f"{name[:_KEPT_OF_NAME]}.{sha256(family.encode()).hexdigest()}"
    return _table_key(store, name)


def is_table_key(key: str, store: StoreId, family: str) -> bool:
    """Return whether a column family's table may have this key: as `table_key` returns it, or with
    its whole name, as earlier builds wrote it to object storages.
    """
    return key in (table_key(store, family), _table_key(store, _encoded(family)))


def is_table(key: str) -> bool:
    """Return whether `key` lies where a canonical savepoint has its tables."""
    return key.startswith(_PREFIX)


def _encoded(family: str) -> str:
    # The user chooses names of state variables. So this percent-encodes every character but
    # letters, digits, `_`, `-`, `~` and `$`.
    return quote(family, safe="$").replace(".", "%2E")


def _table_key(store: StoreId, name: str) -> str:
    return check_relative(
        f"{_PREFIX}{store.operator}/{store.name}/{name}/{store.partition}.parquet"
    )
