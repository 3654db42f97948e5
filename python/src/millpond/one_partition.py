"""Whether an operator keeps all of its state in partition 0, from what Spark wrote of it. The rule itself: `partition_keys`."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.errors import NotFoundError
from millpond.expected import schema_keys
from millpond.partition_keys import lives_in_one_partition
from millpond.spark_metadata import OperatorInfo
from millpond.state.schema_files import key_columns
from millpond.storage import Storage


def lives_in_partition_0(storage: Storage, operator: int, info: OperatorInfo | None) -> bool:
    """Return whether the operator has no partition key: an aggregation without keys, a limit. Without metadata: no.

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
