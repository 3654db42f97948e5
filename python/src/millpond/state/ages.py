"""The ages of rows with a time to live, as they lie behind values: docs/reference/format.md,
"Physical key".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millpond.model.json_fields import ColumnFamily

AGE_BYTES = 4
# Of the size of a value by 8: the version of the encoding, a row of whole words, its age.
_REST = 1 + AGE_BYTES


def _may_have(family: ColumnFamily) -> bool:
    return family.encoding == "unsaferow" and not family.multi


def without_ages(family: ColumnFamily, values: Sequence[bytes]) -> Sequence[bytes]:
    """Return the values of a column family without the ages of their rows."""
    if not _may_have(family):
        return values
    return [value[:-AGE_BYTES] if len(value) & 7 == _REST else value for value in values]


def with_ages(
    family: ColumnFamily,
    before: Iterable[tuple[bytes, bytes]],
    keys: Sequence[bytes],
    values: Sequence[bytes],
) -> list[bytes]:
    """Return new values with the ages that the rows had.

    Args:
        before: keys and values, as they were.
        keys, values: the new rows. The values have no ages. A key that was not there gets none.
    """
    if not _may_have(family):
        return list(values)
    ages = {key: old[-AGE_BYTES:] for key, old in before if len(old) & 7 == _REST}
    return [value + ages.get(key, b"") for key, value in zip(keys, values, strict=True)]
