"""`diff`: counts the keys that differ between two states, per column family.

It skips key groups whose rows have the same digest, so equal parts cost one pass.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, NotFoundError
from millpond.format import layout
from millpond.operations.output.copying import Progress
from millpond.query.erasing import whole
from millpond.query.from_savepoint import savepoint_image
from millpond.query.image import Image
from millpond.query.index import SavepointIndex, read_index
from millpond.query.row_source import Rows, RowSource
from millpond.query.whole import checkpoint_image
from millpond.rows import require_tools
from millpond.state.ages import without_ages
from millpond.state.savepoint_rows import open_rows
from millpond.storage import Storage, open_checkpoint, root_of
from millpond.storage.given import takes_options

_MODULUS = 1 << 128
_DECODED_AT_ONCE = 10_000
# A key that differs, and its value in the first and in the second state.
Change = tuple[bytes, bytes | None, bytes | None]
Family = tuple[int, str, str]  # operator, store, column family


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDiff:
    """One column family. Counts are of keys; a key with a list of values counts once."""

    operator: int
    name: str  # of the operator
    store: str
    column_family: str
    added: int  # in the second, not in the first
    removed: int
    changed: int
    same: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDiff:
    """One key that differs. Rows are as JSON has them; of a list of values, all of them."""

    operator: int
    store: str
    column_family: str
    change: str  # added, removed, changed
    key: Any  # its bytes in base64 if no schema describes the column family any more
    before: Any  # None: the key was not there
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """What differs. `to_json` is the contract of `millpond savepoint diff --json`."""

    first: str
    second: str
    families: tuple[FamilyDiff, ...]
    batches: tuple[int, int]  # of the two states
    rows: tuple[RowDiff, ...] | None = None  # None: not asked for

    @property
    def equal(self) -> bool:
        return all(not (f.added or f.removed or f.changed) for f in self.families)

    def to_json(self) -> dict[str, Any]:
        families = [asdict(family) for family in self.families]
        return {
            "first": self.first,
            "second": self.second,
            "equal": self.equal,
            "families": families,
            "batches": list(self.batches),
            "rows": None if self.rows is None else [asdict(row) for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two states."""

    image: Image
    rows: RowSource

    def of(self, family: Family) -> Iterator[Rows]:
        operator, store, name = family
        for found in self.rows.stores():
            if (found.store.operator, found.store.name) == (operator, store):
                yield from (rows for rows in self.rows.rows(found) if rows.family.name == name)

    def families(self) -> set[Family]:
        return {
            (found.store.operator, found.store.name, family.name)
            for found in self.rows.stores()
            for family in found.families
        }

    def digests(self, step: Callable[[], None]) -> dict[Family, dict[int, tuple[int, int]]]:
        """Return, of each column family and key group, a digest of its rows and their number. The
        digest does not depend on the order of rows.
        """
        found: dict[Family, dict[int, tuple[int, int]]] = {}
        for store in self.rows.stores():
            for rows in self.rows.rows(store):
                by_group = found.setdefault(
                    (store.store.operator, store.store.name, rows.family.name), {}
                )
                values = without_ages(rows.family, rows.values)
                for group, key, value in zip(rows.groups, rows.keys, values, strict=True):
                    total, count = by_group.get(group, (0, 0))
                    by_group[group] = ((total + _digest(key, value)) % _MODULUS, count + 1)
            step()
        return found


def _digest(key: bytes, value: bytes) -> int:
    head = len(key).to_bytes(4, "little")
    return int.from_bytes(hashlib.blake2b(head + key + value, digest_size=16).digest(), "little")


def _steps(total: int, progress: Progress | None) -> Callable[[], None]:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return step


@takes_options
def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str] | None = None,
    *,
    batches: Sequence[int] = (),
    rows: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, object] | None = None,
) -> DiffReport:
    """Compare two states byte by byte: those of two savepoints or Spark checkpoints, or those of
    one Spark checkpoint after two batches.

    Numbers of partitions and formats may differ. Memory holds the rows of key groups that differ.
    Column families in the order of time have no key groups: if one differs, memory holds all its
    rows.

    Args:
        first, second: path or URI of a savepoint, or of a Spark checkpoint. `second` may be left
            out if there are two batches.
        batches: a committed batch of each whose state is retained; empty: the last ones.
        rows: return each key that differs, with its value before and after. Memory holds them.
            Needs the extra `tools`.
        progress: called after each store, and after each column family: how many are done, and how
            many there are in all.
        options: of the storages, by name.
    Raises: as `show` and `create`; InvalidInputError: INVALID_ARGUMENT: there is neither a second
        state nor two batches.
    """
    if len(batches) not in (0, 2) or (second is None and not batches):
        raise InvalidInputError(
            "diff compares two states, and got one",
            hint="Name a second savepoint or checkpoint, or two batches: --batch 3 --batch 7.",
        )
    if rows:
        require_tools()
    one, other = batches or (None, None)
    place = root_of(first)
    other_place = place if second is None else root_of(second)
    storage, other_storage = open_checkpoint(place), open_checkpoint(other_place)
    with whole(storage, place), whole(other_storage, other_place):
        a, b = _side(storage, place, one), _side(other_storage, other_place, other)
        return _compared(a, b, place, other_place, rows, progress)


def _compared(
    a: _Side, b: _Side, place: str, other_place: str, rows: bool, progress: Progress | None
) -> DiffReport:
    names = {op.operator: op.name for op in (*b.image.operators, *a.image.operators)}
    every = sorted(a.families() | b.families())
    step = _steps(len(a.rows.stores()) + len(b.rows.stores()) + len(every), progress)
    digests_a, digests_b = a.digests(step), b.digests(step)
    # Digests of groups can be compared if both states have the same groups, and rows know theirs.
    # A query without state has none.
    comparable = (
        bool(a.image.operators and b.image.operators) and a.rows.key_groups == b.rows.key_groups
    )
    families = []
    found: list[RowDiff] = []
    for family in every:
        step()
        groups_a, groups_b = digests_a.get(family, {}), digests_b.get(family, {})
        if not groups_a and not groups_b:
            continue
        groups: set[int] | None = None
        if comparable and (-1 in groups_a) == (-1 in groups_b):
            groups = {
                g for g in groups_a.keys() | groups_b.keys() if groups_a.get(g) != groups_b.get(g)
            }
        told: list[Change] | None = [] if rows else None
        added, removed, changed, same = _compare(a, b, family, groups, told)
        if told:
            found += _decoded(a, b, family, told)
        if groups is not None:
            same += sum(count for group, (_, count) in groups_a.items() if group not in groups)
        operator, store, name = family
        families.append(
            FamilyDiff(
                operator=operator,
                name=names.get(operator, ""),
                store=store,
                column_family=name,
                added=added,
                removed=removed,
                changed=changed,
                same=same,
            )
        )
    return DiffReport(
        first=place,
        second=other_place,
        families=tuple(families),
        batches=(a.image.batch, b.image.batch),
        rows=tuple(found) if rows else None,
    )


def _compare(
    a: _Side, b: _Side, family: Family, groups: set[int] | None, told: list[Change] | None
) -> tuple[int, int, int, int]:
    """Count the added, removed, changed and equal keys of some groups (None: of all).

    Args:
        told: gets the keys that differ; None: nobody wants them.
    """
    if groups is not None and not groups:
        return 0, 0, 0, 0
    before = dict(_entries(a, family, groups))
    added = changed = same = 0
    for key, value in _entries(b, family, groups):
        old = before.pop(key, None)
        if old is None:
            added += 1
        elif old != value:
            changed += 1
        else:
            same += 1
            continue
        if told is not None:
            told.append((key, old, value))
    if told is not None:
        told += [(key, old, None) for key, old in before.items()]
    return added, len(before), changed, same


def _entries(side: _Side, family: Family, groups: set[int] | None) -> Iterator[tuple[bytes, bytes]]:
    for rows in side.of(family):
        values = without_ages(rows.family, rows.values)
        for group, key, value in zip(rows.groups, rows.keys, values, strict=True):
            if groups is None or group in groups:
                yield key, value


def _decoded(a: _Side, b: _Side, family: Family, told: Sequence[Change]) -> list[RowDiff]:
    # Start-up time: pyarrow.
    from millpond.state.family_rows import FamilyRows

    old, new = (FamilyRows.of(side.image, side.rows, family) for side in (a, b))
    old, new = old.described_like(new), new.described_like(old)
    operator, store, name = family
    decoded = []
    for start in range(0, len(told), _DECODED_AT_ONCE):
        part = told[start : start + _DECODED_AT_ONCE]
        of_new = [change for change in part if change[2] is not None]
        of_old = [change for change in part if change[1] is not None]
        keys = {
            **old.keys([key for key, _, _ in of_old]),
            **new.keys([key for key, _, _ in of_new]),
        }
        before = old.values({key: value for key, value, _ in of_old if value is not None})
        after = new.values({key: value for key, _, value in of_new if value is not None})
        decoded += [
            RowDiff(
                operator=operator,
                store=store,
                column_family=name,
                change="added" if was is None else "removed" if now is None else "changed",
                key=keys[key],
                before=before.get(key),
                after=after.get(key),
            )
            for key, was, now in part
        ]
    return decoded


def _side(storage: Storage, root: str, batch: int | None) -> _Side:
    index = _index(storage, root)
    image = (
        checkpoint_image(storage, root, batch) if index is None else savepoint_image(storage, index)
    )
    if batch not in (None, image.batch):
        raise NotFoundError(
            f"{root} is of batch {image.batch}, not of {batch}", kind=ErrorKind.BATCH_NOT_COMMITTED
        )
    return _Side(image, open_rows(storage, image, index))


def _index(storage: Storage, root: str) -> SavepointIndex | None:
    try:
        storage.stat(layout.SAVEPOINT_KEY)
    except NotFoundError:
        return None
    return read_index(storage, root)
