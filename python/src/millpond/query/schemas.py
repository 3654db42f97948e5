"""The schemas of an operator's state, from the schema files that Spark wrote (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.errors import ErrorKind, FormatError
from millpond.query.expected import schema_keys
from millpond.query.image import operator_info_of
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.state_schemas import FamilyText, family_texts

Families = Mapping[tuple[str, str], FamilyText]
"""The column families of an operator, by store and name."""


def schema_files(
    texts: Mapping[str, bytes], operator: int, info: OperatorInfo, store: str
) -> dict[str, bytes]:
    """Return the schema files of a store, by key. The last one describes what the newest batch
    wrote. A store without column families has one file.

    Args:
        texts: Spark's metadata and schema files, by key.
    Raises: FormatError: FORMAT_DAMAGED: a file is not there. UNSAFE_PATH.
    """
    found = {}
    for key in schema_keys(operator, info, store):
        if key not in texts:
            raise FormatError(
                f"{key} is not there: nothing tells the columns of the state",
                kind=ErrorKind.FORMAT_DAMAGED,
            )
        found[key] = texts[key]
    return found


def newest_families(
    texts: Mapping[str, bytes], operator: int, info: OperatorInfo, store: str
) -> tuple[FamilyText, ...]:
    """Return the newest schemas of a store. Args, Raises: as `schema_files`, `family_texts`."""
    key, text = [*schema_files(texts, operator, info, store).items()][-1]
    return family_texts(text, prefix_columns=info.prefix_columns.get(store, 0), name=key)


def every_family(
    texts: Mapping[str, bytes], operator: int, info: OperatorInfo, store: str
) -> tuple[FamilyText, ...]:
    """Return the newest schema of each column family of a store, of those too that the job has
    dropped: Spark keeps their rows. Args, Raises: as `newest_families`.
    """
    return newest_of_each(schema_files(texts, operator, info, store), info, store)


def newest_of_each(
    files: Mapping[str, bytes], info: OperatorInfo, store: str
) -> tuple[FamilyText, ...]:
    """Return the newest schema of each column family that schema files of a store describe.

    Args:
        files: by key, the newest last.
    Raises: as `family_texts`.
    """
    prefix_columns = info.prefix_columns.get(store, 0)
    found: dict[str, FamilyText] = {}
    for key, text in files.items():
        for family in family_texts(text, prefix_columns=prefix_columns, name=key):
            found[family.name] = family
    return tuple(found.values())


def families_of(texts: Mapping[str, bytes], operator: int) -> dict[tuple[str, str], FamilyText]:
    """Return the newest schemas of all stores of an operator, by store and column family.

    Args, Raises: as `newest_families`.
    """
    info = operator_info_of(texts, operator)
    return {
        (store, family.name): family
        for store in info.stores
        for family in newest_families(texts, operator, info, store)
    }
