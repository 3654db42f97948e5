"""Reads JSON objects from storage strictly. Defines the small records that several files share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.errors import MillpondError

Fail = Callable[[str], MillpondError]

# A changelog or a manifest lists its live keys by key group up to this many groups. With more
# groups it lists none.
MOST_GROUP_KEYS = 1_024
# Of a column family: physical keys have two bytes for it.
MAX_FAMILY_ID = 0xFFFF


class JsonFields:
    """One JSON object. Every accessor raises an error if the field is absent or of the wrong type.

    Args:
        value: a parsed JSON value; anything but an object raises.
        fail: makes the error from a message.
        path: the prefix of field names in messages.
    """

    def __init__(self, value: object, fail: Fail, path: str = "") -> None:
        if not isinstance(value, dict):
            raise fail(f"{path or 'body'} is no object")
        self._value: dict[str, Any] = value
        self._fail = fail
        self._path = f"{path}." if path else ""

    def _get(self, name: str) -> Any:
        if name not in self._value:
            raise self._fail(f"field {self._path}{name} is missing")
        return self._value[name]

    def integer(self, name: str, minimum: int | None = 0, maximum: int = 2**63 - 1) -> int:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value > maximum:
            raise self._fail(f"field {self._path}{name} is no whole number in range")
        if minimum is not None and value < minimum:
            raise self._fail(f"field {self._path}{name} is below {minimum}")
        return value

    def string(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise self._fail(f"field {self._path}{name} is no text")
        return value

    def boolean(self, name: str) -> bool:
        value = self._get(name)
        if not isinstance(value, bool):
            raise self._fail(f"field {self._path}{name} is neither true nor false")
        return value

    def array(self, name: str) -> list[Any]:
        value = self._get(name)
        if not isinstance(value, list):
            raise self._fail(f"field {self._path}{name} is no list")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        values = self.array(name)
        if not all(type(value) is int and 0 <= value < 2**63 for value in values):
            raise self._fail(f"field {self._path}{name} is no list of whole numbers")
        return tuple(values)

    def strings(self, name: str) -> tuple[str, ...]:
        values = self.array(name)
        if not all(isinstance(value, str) for value in values):
            raise self._fail(f"field {self._path}{name} is no list of texts")
        return tuple(values)

    def child(self, name: str) -> JsonFields:
        return JsonFields(self._get(name), self._fail, f"{self._path}{name}")

    def children(self, name: str) -> list[JsonFields]:
        return [
            JsonFields(v, self._fail, f"{self._path}{name}[{i}]")
            for i, v in enumerate(self.array(name))
        ]

    def has(self, name: str) -> bool:
        """Return whether the field is there."""
        return name in self._value

    def is_null(self, name: str) -> bool:
        return self._get(name) is None

    def fail(self, message: str) -> MillpondError:
        """Return the error for `message`."""
        return self._fail(message)


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """A column family: what the shim needs to open it again."""

    name: str  # in Spark
    id: int  # in physical keys, u16
    kind: str = ""  # how its keys are looked up; "" where the file does not say
    internal: bool = False  # its rows do not count as keys
    multi: bool = False  # a key has a list of values
    encoding: str = "unsaferow"  # of keys and values: `unsaferow` or `avro`
    removed: bool = False  # the job dropped the family; only deletes of its rows are left

    @property
    def spans_key_groups(self) -> bool:
        """Whether the order of its rows spans partition keys: they all lie in the reserved slot."""
        return self.kind in ("range", "time-first")

    def slot_of(self, physical: bytes) -> int:
        """Return the slot of a row's key group, from the row's physical key.

        The slot is the first two bytes. In a family that spans key groups it is the last two.
        """
        return int.from_bytes(physical[-2:] if self.spans_key_groups else physical[:2], "big")

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"name": self.name, "id": self.id}
        if self.kind:
            value["kind"] = self.kind
        if self.internal:
            value["internal"] = True
        if self.multi:
            value["multi"] = True
        if self.encoding != "unsaferow":
            value["encoding"] = self.encoding
        if self.removed:
            value["removed"] = True
        return value

    @staticmethod
    def from_json(fields: JsonFields) -> ColumnFamily:
        return ColumnFamily(
            fields.string("name"),
            fields.integer("id", 0, MAX_FAMILY_ID),
            fields.string("kind") if fields.has("kind") else "",
            fields.boolean("internal") if fields.has("internal") else False,
            fields.boolean("multi") if fields.has("multi") else False,
            fields.string("encoding") if fields.has("encoding") else "unsaferow",
            fields.boolean("removed") if fields.has("removed") else False,
        )


def column_families_from_json(fields: JsonFields) -> tuple[ColumnFamily, ...]:
    """Return the field `column_families`.

    Raises the fields' error if two families share an id: nobody could tell their rows apart.
    """
    families = tuple(ColumnFamily.from_json(entry) for entry in fields.children("column_families"))
    names: dict[int, str] = {}
    for family in families:
        if names.setdefault(family.id, family.name) != family.name:
            raise fields.fail(
                f"the column families {names[family.id]!r} and {family.name!r} have the same id"
                f" {family.id}"
            )
    return families


def group_keys_from_json(fields: JsonFields) -> tuple[int, ...] | None:
    """Return the field `group_keys`: live keys by key group; None if the file has no such field."""
    return fields.integers("group_keys") if fields.has("group_keys") else None


# The shim's words (`StoreLayout.scala`) for a store that lies by keys, and holds a wrong one.
_MISPLACED = "a key of key group "
# The end of its words for a store of which the query's next batch will tell whether it holds one.
_UNPROVEN = "start the query once"


def is_unproven(reason: str) -> bool:
    """Whether a store that is not scalable for this reason may be so after the query's next
    batch.
    """
    return reason.endswith(_UNPROVEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsInfo:
    """What a stored file says about the key groups of its store."""

    max_parallelism: int
    base: int
    partitions: int  # state partitions of the operator when the file was written
    scalable: bool = True  # False: the store has rows of key groups that its partition does not own
    reason: str = ""  # why it is not scalable

    @property
    def by_key(self) -> bool:
        """Whether the key of each row tells its slot. Else all rows lie in slot 0: when the first
        was written, nobody knew what Spark hashes.
        """
        return self.scalable or self.reason.startswith(_MISPLACED)

    def to_json(self) -> dict[str, Any]:
        return {
            "max_parallelism": self.max_parallelism,
            "base": self.base,
            "partitions": self.partitions,
            "scalable": self.scalable,
            "reason": self.reason,
        }

    @staticmethod
    def from_json(fields: JsonFields) -> KeyGroupsInfo:
        return KeyGroupsInfo(
            max_parallelism=fields.integer("max_parallelism", 1, 65_536),
            base=fields.integer("base", 1, 65_536),
            partitions=fields.integer("partitions", 1),
            scalable=fields.boolean("scalable"),
            reason=fields.string("reason"),
        )
