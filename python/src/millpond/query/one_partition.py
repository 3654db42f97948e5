"""Whether an operator keeps all of its state in partition 0, by the metadata and schemas that Spark
wrote.

The rule itself is in `model/partition_keys.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.errors import NotFoundError
from millpond.model.partition_keys import lives_in_one_partition
from millpond.query.expected import schema_keys
from millpond.spark.log_entries import OperatorInfo
from millpond.spark.state_schemas import key_columns
from millpond.storage import Storage


def lives_in_partition_0(storage: Storage, operator: int, info: OperatorInfo | None) -> bool:
    """Return whether the operator has no partition key: an aggregation without keys, a limit.

    Returns False if there is no metadata.
    Raises: FormatError: a schema file is damaged.
    """
    return info is not None and lives_in_one_partition(
        info.name,
        {name: _columns(storage, schema_keys(operator, info, name)) for name in info.stores},
    )


def _columns(storage: Storage, keys: Sequence[str]) -> tuple[str, ...] | None:
    try:
        return key_columns(storage.read(keys[-1]), name=keys[-1])
    except NotFoundError:
        return None
