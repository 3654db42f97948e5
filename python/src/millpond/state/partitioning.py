"""Computes from their keys which key group rows belong to. Needs the extra `tools`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import UnsupportedError
from millpond.model.partition_keys import PartitionKeyRule
from millpond.rows.arrow_types import struct_type
from millpond.rows.decode import Ints
from millpond.rows.hashing import check_hashable, groups_of, hash_rows
from millpond.spark.types import SparkType, Struct


def key_groups(keys: Any, schema: Struct, rule: PartitionKeyRule, max_parallelism: int) -> Ints:
    """Return the key group of each key. Args, Raises: as `key_hashes`."""
    return groups_of(key_hashes(keys, schema, rule), max_parallelism)


def key_hashes(keys: Any, schema: Struct, rule: PartitionKeyRule) -> npt.NDArray[np.int32]:
    """Return the hash of each key's partition key; 0 if there is none.

    Args:
        keys: `pyarrow.StructArray` of keys of a state. The first `deciding_columns` are enough.
        schema: of whole keys.
        rule: which part of a key decides its partition.
    Raises: UnsupportedError: the rule, or the hash of a column, is not known.
    """
    if rule.kind == "none":
        return np.zeros(len(keys), dtype=np.int32)
    return hash_rows(*partition_columns(keys, schema, rule))


def partition_columns(keys: Any, schema: Struct, rule: PartitionKeyRule) -> tuple[Any, Struct]:
    """Return the columns that decide where keys lie, as a `pyarrow.StructArray`, and their types.

    Args, Raises: as `key_hashes`; UnsupportedError: there are none.
    """
    kind: SparkType = schema
    if rule.kind == "drop_last":
        kind = Struct(schema.fields[: -rule.n])
    elif rule.kind == "nested":
        for number in rule.path:
            if not isinstance(kind, Struct):
                raise UnsupportedError(f"no struct at place {rule.path} of the key")
            keys, kind = keys.field(number), kind.fields[number].type
    elif rule.kind != "whole":
        raise UnsupportedError(f"rows cannot be placed anew: {rule.reason}")
    if not isinstance(kind, Struct):
        raise UnsupportedError(f"no struct at place {rule.path} of the key")
    return keys, kind


def check_types(schema: Struct, rule: PartitionKeyRule) -> None:
    """Raise UnsupportedError if the hash of a column that decides where keys lie is not known."""
    if rule.kind in ("none", "unknown"):
        return
    check_hashable(partition_columns(pa.array([], struct_type(schema)), schema, rule)[1])


def deciding_columns(schema: Struct, rule: PartitionKeyRule) -> int:
    """Return how many first columns of a key decide its partition."""
    if rule.kind == "none":
        return 0
    if rule.kind == "nested":
        return rule.path[0] + 1
    return len(schema.fields) - rule.n  # `n` is 0 but for `drop_last`
