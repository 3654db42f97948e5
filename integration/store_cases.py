"""Opens stores in the harness, for tests of single store methods, and gives them simple rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from integration.harness import Harness, Provider, Schema, Store, short_conf
from integration.jvm import MILLPOND
from integration.store_model import write_spark_metadata

PARTITIONS = 4
FAMILY_STORE = Schema("g string", "value binary", use_cf=True)  # as transformWithState opens it
PLAIN = Schema("k string, n bigint", "v string")
LISTS = Schema("k string, n bigint", "v string", multi=True)
PREFIX = Schema("k string, n bigint", "v string", {"type": "prefix", "columns": 1})
RANGE = Schema("n bigint, k string", "v string", {"type": "range", "ordinals": [0]})
TIMES = Schema("k string, ts bigint not null", "v string", {"type": "ts_postfix"}, multi=True)
STRINGS = Schema("k bigint", "v string")  # strings by numbers
FAMILIES = {"plain": PLAIN, "lists": LISTS, "prefix": PREFIX, "range": RANGE, "times": TIMES}


def open_provider(
    harness: Harness,
    checkpoint: Path,
    *,
    provider_class: str = MILLPOND,
    schema: Schema = FAMILY_STORE,
    operator: str = "transformWithStateExec",
    variables: Mapping[str, str] | None = None,
    partition: int = 0,
    store: str = "default",
    conf: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    hadoop: Mapping[str, str] | None = None,
) -> Provider:
    """Return a provider over `checkpoint`. Make the Spark checkpoint if it is absent."""
    root = checkpoint / "state"
    if not root.is_dir():
        checkpoint.mkdir(parents=True, exist_ok=True)
        write_spark_metadata(
            checkpoint,
            operator_name=operator,
            partitions=PARTITIONS,
            provider_class=provider_class,
            state_variables=variables,
        )
    ours = (
        {"millpond.gc.graceMs": 0, "millpond.gc.intervalMs": 0}
        if provider_class == MILLPOND
        else {}
    )
    settings = short_conf(
        {
            "minDeltasForSnapshot": 1,
            "rocksdb.changelogCheckpointing.enabled": True,
            "rocksdb.mergeOperatorVersion": 2,
            **ours,
            **(conf or {}),
        }
    )
    settings["spark.sql.shuffle.partitions"] = str(PARTITIONS)
    settings["spark.sql.streaming.minBatchesToRetain"] = "2"
    return harness.open(
        root,
        provider_class=provider_class,
        schema=schema,
        conf=settings,
        partition=partition,
        store=store,
        run_id=run_id,
        hadoop=hadoop,
    )


def open_small(harness: Harness, checkpoint: Path, budget: str) -> Provider:
    """Return a provider of one partition, of strings by numbers, that is soon short of memory.

    Make the Spark checkpoint if it is absent.
    """
    if not checkpoint.exists():
        write_spark_metadata(
            checkpoint, operator_name="stateStoreSave", partitions=1, provider_class=MILLPOND
        )
    options = {"memory.budget": budget, "restore.warmUp": "false", "gc.intervalMs": 0}
    conf = short_conf({f"millpond.{k}": v for k, v in options.items()})
    conf |= {"spark.sql.shuffle.partitions": "1"}
    return harness.open(checkpoint / "state", provider_class=MILLPOND, schema=STRINGS, conf=conf)


def commit_strings(provider: Provider, version: int, rows: Mapping[int, str]) -> None:
    """Put these rows of the schema `STRINGS` into the store at `version`, and commit the next."""
    store = provider.store(version)
    store.put_many([([k], [v]) for k, v in rows.items()])
    assert store.commit().version == version + 1


def strings_of(store: Store) -> dict[int, str]:
    """Return all rows of a store of the schema `STRINGS`."""
    return {k[0]: v[0] for k, v in store.scan()}


def write(provider: Provider, version: int, families: Mapping[str, Schema] = FAMILIES) -> Store:
    """Return the store at `version`. Create its families, as an operator does in every batch."""
    store = provider.store(version)
    for name, schema in families.items():
        store.create_cf(name, schema, internal=name.startswith("$"))
    return store
