"""Providers, stores and iterators in a JVM of `Harness`: the names of them, and their methods.

Rows are lists of simple values, in the order of the schema's columns: bytes are base64 text,
decimals are text, nested structs are lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from integration.harness import Harness

Row = list[Any]
Change = tuple[str, Row, "Row | None", int]


@dataclass(frozen=True)
class Commit:
    """The answer of a commit. `id` and `base_id` are None in Spark checkpoint format 1."""

    version: int
    id: str | None
    base_id: str | None


@dataclass(frozen=True)
class Schema:
    """Key and value columns as DDL text, and the key encoder.

    The encoder is `{"type": "none" | "prefix" | "range" | "ts_prefix" | "ts_postfix", ...}`.
    """

    key: str = "k string, n bigint"
    value: str = "v string, w bigint"
    spec: Mapping[str, Any] = field(default_factory=lambda: {"type": "none"})
    use_cf: bool = False
    multi: bool = False


@dataclass(frozen=True)
class Numbered:
    """Rows of the schema `bigint -> string` that the JVM makes.

    Tag and number decide the text of each row. With an empty tag the JVM removes the rows.
    """

    until: int
    tag: str
    length: int = 0  # of each text, in bytes
    first: int = 0
    step: int = 1

    def arguments(self) -> dict[str, Any]:
        """Return these rows as arguments of a command."""
        return {
            "from": self.first,
            "until": self.until,
            "step": self.step,
            "tag": self.tag,
            "bytes": self.length,
        }


@dataclass(frozen=True)
class Timed:
    """The time of a batch, and the time to live of the rows that its operator writes."""

    now_ms: int
    ttl_ms: int


def _timed(timed: Timed | None) -> dict[str, Any]:
    return {} if timed is None else {"now_ms": timed.now_ms, "ttl_ms": timed.ttl_ms}


@dataclass(frozen=True)
class Provider:
    """A provider in the harness JVM."""

    harness: Harness
    name: str
    schema: Schema

    def store(
        self,
        version: int,
        id: str | None = None,
        *,
        force_snapshot: bool = False,
        load_empty: bool = False,
        task: str | None = None,
        timed: Timed | None = None,
    ) -> Store:
        """Call `getStore`. `task` names the task attempt that asks."""
        s = self.harness.name("s")
        self.harness.call(
            "get_store",
            p=self.name,
            s=s,
            version=version,
            id=id,
            force_snapshot=force_snapshot,
            load_empty=load_empty,
            task=task,
            **_timed(timed),
        )
        return Store(self, s)

    def read_store(
        self,
        version: int,
        id: str | None = None,
        *,
        task: str | None = None,
        of_run: bool = False,
        timed: Timed | None = None,
    ) -> Store:
        """Call `getReadStore`. `task` names the task attempt that asks.

        of_run: the task belongs to the provider's run of the query.
        """
        s = self.harness.name("s")
        self.harness.call(
            "get_read_store",
            p=self.name,
            s=s,
            version=version,
            id=id,
            task=task,
            of_run=of_run,
            **_timed(timed),
        )
        return Store(self, s)

    def upgrade(
        self, read: Store, version: int, id: str | None = None, *, timed: Timed | None = None
    ) -> Store:
        """Call `upgradeReadStoreToWriteStore`."""
        s = self.harness.name("s")
        arguments = {"from": read.name, **_timed(timed)}
        self.harness.call("upgrade", p=self.name, s=s, version=version, id=id, **arguments)
        return Store(self, s)

    def replay(
        self,
        snapshot: int,
        version: int,
        *,
        snapshot_id: str | None = None,
        id: str | None = None,
        read: bool = True,
        read_only: bool = True,
    ) -> Store:
        """Call `replayReadStateFromSnapshot`, or with `read=False` `replayStateFromSnapshot`."""
        s = self.harness.name("s")
        self.harness.call(
            "replay",
            p=self.name,
            s=s,
            snapshot=snapshot,
            version=version,
            snapshot_id=snapshot_id,
            id=id,
            read=read,
            read_only=read_only,
        )
        return Store(self, s)

    def changes(
        self, start: int, version: int, *, cf: str | None = None, id: str | None = None
    ) -> list[Change]:
        """Read all of `getStateStoreChangeDataReader`: (type, key, value or None, batch)."""
        answer = self.harness.call(
            "changes", p=self.name, start=start, version=version, cf=cf, id=id
        )
        return [(kind, key, value, batch) for kind, key, value, batch in answer]

    def snapshot(self) -> None:
        """Call `doSnapshotMaintenance`, on this command's thread."""
        self.harness.call("snapshot", p=self.name)

    def cleanup(self) -> None:
        """Call `doCleanupMaintenance`, on this command's thread."""
        self.harness.call("cleanup", p=self.name)

    def close(self) -> None:
        """Call `close` and `setUnloaded`. The JVM forgets its stores and iterators."""
        self.harness.call("close", p=self.name)


@dataclass(frozen=True)
class Store:
    """A store or read store in the harness JVM."""

    provider: Provider
    name: str

    def _call(self, do: str, **arguments: Any) -> Any:
        return self.provider.harness.call(do, s=self.name, **arguments)

    def get(self, key: Row, **cf: str) -> Row | None:
        """Return the value of a key, or None."""
        return cast("Row | None", self._call("get", k=key, **cf))

    def get_both(self, key: Row, other: Row) -> list[Row | None]:
        """Get two values. Read both only after the second `get`."""
        return cast("list[Row | None]", self._call("get_both", k=key, k2=other))

    def multi_get(self, keys: Sequence[Row], **cf: str) -> list[Row | None]:
        """Call `multiGet`. Return a value or None for each key."""
        return cast("list[Row | None]", self._call("multi_get", keys=list(keys), **cf))

    def values(self, key: Row, **cf: str) -> list[Row]:
        """Read `valuesIterator` to its end."""
        return cast("list[Row]", self._call("values", k=key, **cf))

    def exists(self, key: Row, **cf: str) -> bool:
        """Call `keyExists`."""
        return bool(self._call("exists", k=key, **cf))

    def put(self, key: Row, value: Row, **cf: str) -> None:
        """Call `put`."""
        self._call("put", k=key, v=value, **cf)

    def put_many(self, rows: Sequence[tuple[Row, Row]], **cf: str) -> None:
        """Call `put` for each pair, with one line over the pipe."""
        self._call("put_many", rows=[list(r) for r in rows], **cf)

    def put_numbered(self, layer: Numbered) -> None:
        """Call `put` (or `remove`) for rows that the JVM makes."""
        self._call("put_numbered", **layer.arguments())

    def check_numbered(self, layers: Sequence[Numbered]) -> int:
        """Check that the store has the layers' rows, the last on top. Return their number."""
        return int(self._call("check_numbered", layers=[layer.arguments() for layer in layers]))

    def remove(self, key: Row, **cf: str) -> None:
        """Call `remove`."""
        self._call("remove", k=key, **cf)

    def put_list(self, key: Row, values: Sequence[Row], **cf: str) -> None:
        """Call `putList`."""
        self._call("put_list", k=key, v=list(values), **cf)

    def merge(self, key: Row, value: Row, **cf: str) -> None:
        """Call `merge`."""
        self._call("merge", k=key, v=value, **cf)

    def merge_blanks(self, key: Row, length: int, **cf: str) -> None:
        """Call `merge` with a row of one text of `length` blanks."""
        self._call("merge_blanks", k=key, length=length, **cf)

    def merge_list(self, key: Row, values: Sequence[Row], **cf: str) -> None:
        """Call `mergeList`."""
        self._call("merge_list", k=key, v=list(values), **cf)

    def delete_range(self, begin: Row, end: Row, **cf: str) -> None:
        """Call `deleteRange`: `[begin, end)` in the order of encoded keys."""
        self._call("delete_range", **{"from": begin}, to=end, **cf)

    def create_cf(self, name: str, schema: Schema, *, internal: bool = False) -> None:
        """Call `createColFamilyIfAbsent`."""
        self._family("create_cf", name, schema, internal)

    def register_cf(self, name: str, schema: Schema, *, internal: bool = False) -> None:
        """Call `registerColFamily`."""
        self._family("register_cf", name, schema, internal)

    def _family(self, do: str, name: str, schema: Schema, internal: bool) -> None:
        self._call(
            do,
            cf=name,
            key=schema.key,
            value=schema.value,
            spec=dict(schema.spec),
            multi=schema.multi,
            internal=internal,
        )

    def remove_cf(self, name: str) -> bool:
        """Call `removeColFamilyIfExists`."""
        return bool(self._call("remove_cf", cf=name))

    def cf_names(self) -> list[str]:
        """Return `allColumnFamilyNames`, sorted."""
        return cast("list[str]", self._call("cf_names"))

    def scan(self, **arguments: Any) -> list[tuple[Row, Row]]:
        """Return all pairs, in the provider's order.

        `scan="prefix", k=[...]` or `scan="range"` returns a part.
        """
        return [(k, v) for k, v in self._call("scan", **arguments)]

    def iterate(self, **arguments: Any) -> Cursor:
        """Open an iterator and leave it open."""
        it = self.provider.harness.name("i")
        self._call("iter_open", it=it, **arguments)
        return Cursor(self.provider.harness, it)

    def commit(self) -> Commit:
        """Call `commit` and `getStateStoreCheckpointInfo`. They must agree on the version."""
        answer = self._call("commit")
        if answer["version"] != answer["info_version"]:
            raise AssertionError(
                f"commit returned {answer['version']}, getStateStoreCheckpointInfo"
                f" {answer['info_version']}"
            )
        return Commit(answer["version"], answer["id"], answer["base_id"])

    def abort(self) -> None:
        """Call `abort`."""
        self._call("abort")

    def release(self) -> None:
        """Call `release` of a read store."""
        self._call("release")

    def keys(self) -> int:
        """Return `metrics.numKeys`."""
        return int(self._call("metrics")["keys"])

    def metrics(self) -> dict[str, Any]:
        """Return `keys`, `memory_bytes`, `custom` and `instance`; the last two by name.

        An undeclared custom metric is an error.
        """
        return cast("dict[str, Any]", self._call("metrics"))


@dataclass(frozen=True)
class Cursor:
    """An open iterator."""

    harness: Harness
    name: str

    def next(
        self, count: int = 1, *, remove: bool = False, lazily: bool = False
    ) -> list[tuple[Row, Row]]:
        """Return up to `count` pairs; -1: the rest.

        remove: remove each key before its pair is read. lazily: call `hasNext` only right before
        `next`.
        """
        return [
            (k, v)
            for k, v in self.harness.call(
                "iter_next", it=self.name, n=count, remove=remove, lazily=lazily
            )
        ]

    def seek(self, prefix: Row) -> None:
        """Call `refreshAndSeekToPrefix`. The iterator must be opened with `scan="reusable"`."""
        self.harness.call("iter_seek", it=self.name, k=prefix)

    def close(self) -> None:
        """Close the iterator. A second call does nothing."""
        self.harness.call("iter_close", it=self.name)
