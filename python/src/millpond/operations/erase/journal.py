"""The journal of an erasure (pure: this module encodes and decodes it).

    millpond/erase.json    sealed JSON, kind `erase`

An erasure writes it before it marks `format.json` or `savepoint.json`, and removes it last. The
next run of the same command goes on with what it names. Source: docs/reference/format.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format import layout, table_names
from millpond.format.sealed import seal, unseal
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import JsonFields
from millpond.operations.erase.matching import Shown
from millpond.operations.erase.plan import Rewrite
from millpond.state.writing import plain

KIND = "erase"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What an erasure is about to do.

    job: says which key of which operator, without telling it.
    shown: names of columns for the user, by store and column family, and stored name.
    stores: those of which nothing is left but the rewrites.
    tables, deletes: of a canonical savepoint: keys -> CRC-32 and rows of the new files, and keys of
    tables that have no other row.
    """

    job: str
    operator: int
    shown: Shown
    created_ms: int
    stores: tuple[StoreId, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    deletes: tuple[str, ...] = ()
    tables: Mapping[str, tuple[int, int]]

    @property
    def newest(self) -> dict[StoreId, int]:
        """Of each store that is written anew, its newest version."""
        newest: dict[StoreId, int] = {}
        for rewrite in self.rewrites:
            newest[rewrite.store] = max(rewrite.version.version, newest.get(rewrite.store, 0))
        return newest


def job_of(operator: int, key: Mapping[str, object]) -> str:
    """Return what tells this erasure from another one."""
    text = json.dumps([operator, sorted((n, str(plain(v))) for n, v in key.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def encode_journal(journal: Journal) -> bytes:
    """Return the bytes of the file."""
    body: dict[str, Any] = {
        "required_features": [],
        "job": journal.job,
        "operator": journal.operator,
        "shown": [
            {"store": store, "column_family": family, "stored": old, "name": new}
            for (store, family), names in journal.shown.items()
            for old, new in names.items()
        ],
        "created_ms": journal.created_ms,
        "stores": [_store_json(store) for store in journal.stores],
        "rewrites": [
            {
                **_store_json(one.store),
                "version": one.version.version,
                "id": one.version.id,
                "whole": one.whole,
                "base": one.base,
                "keys": one.keys,
                "group_keys": None if one.group_keys is None else list(one.group_keys),
            }
            for one in journal.rewrites
        ],
        "deletes": list(journal.deletes),
        "tables": [
            {"key": key, "crc32": crc32, "rows": rows}
            for key, (crc32, rows) in journal.tables.items()
        ],
    }
    return seal(KIND, body)


def decode_journal(data: bytes) -> Journal:
    """Return the journal whose file holds `data`.

    Raises: FormatError: FORMAT_DAMAGED, UNSAFE_PATH. UnsupportedError.
    """
    name = layout.ERASE_JOURNAL_KEY
    fields = unseal(KIND, data, name=name, damaged=ErrorKind.FORMAT_DAMAGED)
    rewrites = []
    for one in fields.children("rewrites"):
        store = _store(one)
        try:
            version = VersionId(one.integer("version", 1), one.string("id"))
        except InvalidInputError as e:
            raise fields.fail(e.message) from e
        rewrites.append(
            Rewrite(
                store=store,
                version=version,
                whole=one.boolean("whole"),
                base=one.integer("base"),
                keys=one.integer("keys", -1),
                group_keys=None if one.is_null("group_keys") else one.integers("group_keys"),
            )
        )
    deletes = tuple(layout.check_relative(key) for key in fields.strings("deletes"))
    if not all(table_names.is_table(key) for key in deletes):
        raise fields.fail("deletes a file that is no table")
    shown: dict[tuple[str, str], dict[str, str]] = {}
    for one in fields.children("shown"):
        family = one.string("store"), one.string("column_family")
        shown.setdefault(family, {})[one.string("stored")] = one.string("name")
    return Journal(
        job=fields.string("job"),
        operator=fields.integer("operator"),
        shown=shown,
        created_ms=fields.integer("created_ms"),
        stores=tuple(_store(one) for one in fields.children("stores")),
        rewrites=tuple(rewrites),
        deletes=deletes,
        tables={
            layout.check_relative(one.string("key")): (
                one.integer("crc32", 0, 0xFFFF_FFFF),
                one.integer("rows"),
            )
            for one in fields.children("tables")
        },
    )


def _store_json(store: StoreId) -> dict[str, Any]:
    return {"operator": store.operator, "partition": store.partition, "store": store.name}


def _store(fields: JsonFields) -> StoreId:
    try:
        return StoreId(
            fields.integer("operator"), fields.integer("partition"), fields.string("store")
        )
    except InvalidInputError as e:
        raise fields.fail(e.message) from e
