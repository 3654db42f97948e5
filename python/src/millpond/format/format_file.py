"""`millpond/format.json`: the choices that a Spark checkpoint began with.

Source: docs/reference/format.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millpond.config import BACKENDS
from millpond.errors import ErrorKind, InvalidInputError, error
from millpond.format.sealed import seal, unseal
from millpond.model.json_fields import JsonFields
from millpond.model.key_groups import KeyGroups

KIND = "format"
# In `required_features` while `state erase` rewrites files: nobody else may read or write them.
ERASING = "erase"


@dataclass(frozen=True, slots=True)
class EarlierGroups:
    """Key groups from before a rescale that hashed every row anew."""

    below_version: int  # all versions below this one have these key groups
    key_groups: KeyGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """Key groups of a Spark checkpoint. Only a rescale that hashes every row anew changes them."""

    max_parallelism: int
    base: int
    created_by: str
    created_ms: int  # since the epoch
    earlier: tuple[EarlierGroups, ...] = ()  # before such rescales, ascending by version
    backend: str | None = None  # if the session names none; None: the option's default
    # (operator, version): a key was erased from all versions up to this one. Nobody makes snapshots
    # of them: an executor may have the key in memory that does not know of it.
    erased: tuple[tuple[int, int], ...] = ()

    @property
    def key_groups(self) -> KeyGroups:
        return KeyGroups(self.max_parallelism, self.base)

    def key_groups_at(self, version: int) -> KeyGroups:
        """Return the key groups of the state at `version`."""
        return next(
            (entry.key_groups for entry in self.earlier if version < entry.below_version),
            self.key_groups,
        )

    def erased_version(self, operator: int) -> int:
        """Return up to which version of an operator a key was erased; 0: from none."""
        return max((version for one, version in self.erased if one == operator), default=0)

    def with_erased(self, operator: int, version: int) -> CheckpointFormat:
        """Return the format after a key was erased from an operator's versions up to this one."""
        newest = {**dict(self.erased), operator: max(version, self.erased_version(operator))}
        return replace(self, erased=tuple(sorted(newest.items())))

    def as_of(self, version: int) -> CheckpointFormat:
        """Return the format as it was when `version` was the newest, for another query that goes
        on from there: it has no executor that knows what was erased.
        """
        groups = self.key_groups_at(version)
        earlier = tuple(entry for entry in self.earlier if entry.below_version <= version)
        return replace(
            self,
            max_parallelism=groups.max_parallelism,
            base=groups.base,
            earlier=earlier,
            erased=(),
        )

    def rehashed(self, groups: KeyGroups, version: int) -> CheckpointFormat:
        """Return the format after a rescale that hashed every row into `groups`, as `version`."""
        earlier = (*self.earlier, EarlierGroups(version, self.key_groups))
        return replace(
            self, max_parallelism=groups.max_parallelism, base=groups.base, earlier=earlier
        )


def encode_format(value: CheckpointFormat, *, erasing: bool = False) -> bytes:
    """Return the bytes of the file; with `erasing`, only `state erase` accepts it."""
    body: dict[str, Any] = {
        "max_parallelism": value.max_parallelism,
        "base": value.base,
        "required_features": [ERASING] if erasing else [],
        "created_by": value.created_by,
        "created_ms": value.created_ms,
    }
    if value.earlier:
        body["earlier"] = [
            {
                "below_version": entry.below_version,
                "max_parallelism": entry.key_groups.max_parallelism,
                "base": entry.key_groups.base,
            }
            for entry in value.earlier
        ]
    if value.backend is not None:
        body["backend"] = value.backend
    if value.erased:
        body["erased"] = [
            {"operator": operator, "version": version} for operator, version in value.erased
        ]
    return seal(KIND, body)


def decode_format(
    data: bytes, *, name: str = "millpond/format.json", erasing: bool = False
) -> CheckpointFormat:
    """Return what the file holds.

    Args:
        erasing: accept that an erasure has not ended.
    Raises:
        FormatError: FORMAT_DAMAGED.
        UnsupportedError: FORMAT_TOO_NEW.
        ConflictError: ERASE_UNFINISHED.
    """
    fields = unseal(KIND, data, name=name, damaged=ErrorKind.FORMAT_DAMAGED, features=[ERASING])
    refuse_erasing(fields, name, erasing)
    groups = _groups(fields)
    earlier = fields.children("earlier") if fields.has("earlier") else ()
    backend = fields.string("backend") if fields.has("backend") else None
    if backend is not None and backend not in BACKENDS:
        raise fields.fail(f"there is no backend {backend}")
    return CheckpointFormat(
        max_parallelism=groups.max_parallelism,
        base=groups.base,
        created_by=fields.string("created_by"),
        created_ms=fields.integer("created_ms"),
        earlier=tuple(
            EarlierGroups(entry.integer("below_version", 1), _groups(entry)) for entry in earlier
        ),
        backend=backend,
        erased=tuple(
            (entry.integer("operator"), entry.integer("version"))
            for entry in (fields.children("erased") if fields.has("erased") else ())
        ),
    )


def refuse_erasing(fields: JsonFields, name: str, erasing: bool) -> None:
    """Raise ConflictError (ERASE_UNFINISHED) if the file has the mark, but not with `erasing`."""
    if ERASING in fields.strings("required_features") and not erasing:
        raise error(ErrorKind.ERASE_UNFINISHED, f"{name}: a key is being erased from the state")


def _groups(fields: JsonFields) -> KeyGroups:
    try:
        return KeyGroups(
            fields.integer("max_parallelism", 1, 65_536), fields.integer("base", 1, 65_536)
        )
    except InvalidInputError as e:
        raise fields.fail(e.message) from e
