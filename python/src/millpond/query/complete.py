"""Check that a savepoint holds every store that its own logs demand (pure). A savepoint of a
damaged Spark checkpoint may lack one.
"""

from __future__ import annotations

from millpond.format import layout, spark_names
from millpond.model.ids import StoreId
from millpond.query.expected import partitions_of, schema_keys, stores_of
from millpond.query.image import Image, operator_info
from millpond.query.index import CANONICAL, SavepointIndex, damaged
from millpond.spark.log_entries import parse_commit, parse_offsets
from millpond.spark.state_schemas import key_columns


def check_complete(image: Image, index: SavepointIndex) -> None:
    """Check that every store is there that the state after the savepoint's batch must have.

    Args:
        image: that of the savepoint, with its texts.
    Raises: FormatError: SAVEPOINT_DAMAGED.
    """
    try:
        offsets = parse_offsets(_text(image, spark_names.offsets_key(image.batch)), image.batch)
        commit = parse_commit(_text(image, spark_names.commits_key(image.batch)), image.batch)
        there = _stores_with_state(image, index)
        operators = {op.operator for op in image.operators}
        for operator in sorted({*operators, *commit.state_ids}):
            if operator not in operators:
                raise damaged(
                    f"the commit log lists operator {operator}, but the savepoint has no state of"
                    " it"
                )
            for store in _expected(image, operator, offsets.partitions):
                if store not in there:
                    raise damaged(
                        f"the state of {layout.store_dir(store)} after batch {image.batch} is not"
                        " in it"
                    )
    except KeyError as e:
        raise damaged(f"{e.args[0]} is not in it") from e


def _text(image: Image, key: str) -> str:
    return image.texts[key].decode("utf-8", "replace")


def _expected(image: Image, operator: int, partitions: int | None) -> list[StoreId]:
    info = operator_info(image, operator)
    columns = {}
    for store in info.stores:
        for key in schema_keys(operator, info, store):
            columns[store] = key_columns(image.texts[key], name=key)
    return list(stores_of(operator, info, partitions_of(info, columns, partitions) or 0))


def _stores_with_state(image: Image, index: SavepointIndex) -> set[StoreId]:
    """Return the stores of the index that have a file or a table."""
    listed = {
        StoreId(op.operator, s.partition, s.name) for op in image.operators for s in op.stores
    }
    if index.format == CANONICAL:
        return listed & {table.store for table in index.tables}
    keys = (layout.parse_key(key) for key in (*image.texts, *(file.key for file in image.files)))
    return listed & {key.store for key in keys if key is not None and key.file is not None}
