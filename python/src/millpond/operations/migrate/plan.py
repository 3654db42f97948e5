"""Plans what is copied from one state store provider to another, and what changes in Spark's logs
(pure).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import UnsupportedError
from millpond.format import layout, spark_names
from millpond.model.partition_keys import (
    TRANSFORM_WITH_STATE_IN_PANDAS,
    TRANSFORM_WITH_STATE_OPERATORS,
)
from millpond.query.image import Image, OperatorImage, StoreImage, operator_info, without_state
from millpond.query.schemas import every_family, schema_files
from millpond.spark.log_edit import (
    StateIds,
    commit_with_state_ids,
    commit_without_state_ids,
    offsets_with_conf,
)
from millpond.spark.log_entries import SHUFFLE_PARTITIONS, OperatorInfo, parse_offsets
from millpond.spark.metadata import PROVIDER_KEY, is_avro
from millpond.spark.state_schemas import FamilyText
from millpond.spark.uris import uri_below

_SPARK = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB, HDFS = "rocksdb", "hdfs"
PROVIDERS = {
    ROCKSDB: f"{_SPARK}RocksDBStateStoreProvider",
    HDFS: f"{_SPARK}HDFSBackedStateStoreProvider",
}

_STORE_CONF = "spark.sql.streaming.stateStore."
# Spark checks the first row of a task against the schema. It refuses rows that its own operator for
# deduplication writes.
_COPYING = {f"{_STORE_CONF}formatValidation.enabled": "false"}

Ids = Mapping[tuple[int, int, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A provider, where its state is, and its own settings."""

    provider: str
    root: str  # URI of the Spark checkpoint
    conf: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """As the shim's `ProviderCopy` reads it."""
        return {
            "provider": self.provider,
            "root": uri_below(self.root, layout.STATE_DIR),
            "conf": dict(self.conf),
            "load_empty": self.provider != PROVIDERS[HDFS],
        }


def provider_name(provider: str) -> str:
    """Return the short name of a provider's class; of an unknown provider the class."""
    return next((name for name, cls in PROVIDERS.items() if cls == provider), provider)


def check_fits(image: Image, provider: str) -> None:
    """Raise UnsupportedError if `provider` cannot keep the state of `image`."""
    if provider != PROVIDERS[HDFS]:
        return
    for op in image.operators:
        if operator_info(image, op.operator).schema_paths:
            raise UnsupportedError(
                f"operator {op.operator} ({op.name}) keeps its state in column families, which"
                " Spark's HDFS-backed store does not have",
                hint="Use --provider rocksdb.",
            )


def checkpoint_format(image: Image, provider: str) -> int:
    """Return the Spark checkpoint format that `provider` writes the state of `image` in."""
    return 1 if provider == PROVIDERS[HDFS] else image.spark_checkpoint_format


def request(
    image: Image,
    source: Side,
    target: Side,
    *,
    threads: int,
    spark_conf: Mapping[str, str],
    count_only: bool = False,
) -> dict[str, Any]:
    """Return what the shim's `ProviderCopy` is asked to do.

    Args:
        count_only: it reads the rows and copies none.

    Raises: FormatError: FORMAT_DAMAGED: no schema. UnsupportedError: a schema of another version of
    Spark.
    """
    key = spark_names.offsets_key(image.batch)
    pinned = parse_offsets(image.texts[key].decode("utf-8"), image.batch).conf
    conf = {
        name: value
        for name, value in pinned.items()
        if (name.startswith(_STORE_CONF) and name != PROVIDER_KEY) or name == SHUFFLE_PARTITIONS
    }
    stores = [
        _store(image, op, store, source.root, avro=is_avro(pinned))
        for op in image.operators
        for store in op.stores
    ]
    return {
        "conf": {**conf, **_COPYING},
        "spark_conf": dict(spark_conf),
        "source": source.to_json(),
        "target": target.to_json(),
        "checkpoint_format": checkpoint_format(image, target.provider),
        "threads": threads,
        "count_only": count_only,
        "stores": stores,
    }


def _store(
    image: Image, op: OperatorImage, store: StoreImage, root: str, *, avro: bool
) -> dict[str, Any]:
    info = operator_info(image, op.operator)
    # Only a store with column families has schema files that its metadata lists.
    listed = bool(info.schema_paths.get(store.name))
    paths = schema_files(image.texts, op.operator, info, store.name) if listed else ()
    families = every_family(image.texts, op.operator, info, store.name)
    names = {family.name for family in families}
    return {
        "operator": op.operator,
        "partition": store.partition,
        "store": store.name,
        "version": store.version,
        "id": store.id if image.spark_checkpoint_format > 1 else None,
        "uses_families": listed,
        # Only the operator's node knows by what Spark placed its keys.
        "placement_unknown": op.name in TRANSFORM_WITH_STATE_OPERATORS,
        "made_by_pandas": op.name == TRANSFORM_WITH_STATE_IN_PANDAS,
        "schema_files": [uri_below(root, path) for path in paths] if avro else [],
        "families": [_family(family, info, names) for family in families],
    }


def _family(family: FamilyText, info: OperatorInfo, names: Collection[str]) -> dict[str, Any]:
    return {
        "name": family.name,
        "key": family.key,
        "value": family.value,
        "spec": {
            "kind": family.kind,
            "prefix_columns": family.prefix_columns,
            "ordinals": list(family.ordinals),
        },
        "multi": _has_lists(family, info, names),
        "internal": _is_internal(family, info),
    }


def _has_lists(family: FamilyText, info: OperatorInfo, names: Collection[str]) -> bool:
    """Whether a key has several values, as Spark's own rewriter decides it
    (`StatePartitionReaderUtils.isMultiValuedCF`).

    Args:
        names: of all column families of the store. Of a list that the job has dropped only they
            tell: it has a counter.
    """
    if family.kind in ("time-first", "time-last"):  # of a join in format 4
        return True
    return any(
        v.get("stateName") == family.name and v.get("stateVariableType") == "ListState"
        for v in info.state_variables
    ) or bool({f"$rowCounter_{family.name}", f"$count_{family.name}"} & {*names})


def _is_internal(family: FamilyText, info: OperatorInfo) -> bool:
    """Whether the rows are the operator's own, and not counted.

    Schema files do not say it. Joins in the formats 3 and 4 have two such column families. Those of
    transformWithState have names that begin with `$`.
    """
    own = ("-keyToNumValues", "-tsWithKey")
    return family.name.startswith("$") or (
        info.name == "symmetricHashJoin" and family.name.endswith(own)
    )


def image_for(image: Image, provider: str, ids: Ids | None) -> Image:
    """Return what Spark itself wrote, as a query with state of `provider` has it.

    Args:
        ids: of the new versions, in Spark checkpoint format 2; None: they are not known yet, so the
            commit log is not right.
    Raises: FormatError: FORMAT_DAMAGED.
    """
    bare = without_state(image)
    texts: dict[str, bytes] = {}
    for key, text in bare.texts.items():
        if key == layout.FORMAT_KEY:
            continue  # Millpond's own file: its store writes it
        match spark_names.log_entry(key):
            case (spark_names.OFFSETS_DIR, _):
                text = offsets_with_conf(
                    text.decode("utf-8"), {PROVIDER_KEY: provider}, name=key
                ).encode()
            case (spark_names.COMMITS_DIR, _) if (
                ids is not None and image.spark_checkpoint_format > 1
            ):
                commit = text.decode("utf-8")
                if checkpoint_format(image, provider) > 1:
                    text = commit_with_state_ids(commit, _state_ids(image, ids), name=key).encode()
                else:
                    text = commit_without_state_ids(commit, name=key).encode()
        texts[key] = text
    return replace(bare, texts=texts, provider=provider)


def _state_ids(image: Image, ids: Ids) -> StateIds:
    return {
        op.operator: [
            [ids[op.operator, partition, name] for name in operator_info(image, op.operator).stores]
            for partition in sorted({store.partition for store in op.stores})
        ]
        for op in image.operators
    }
