"""Every row lies in a key group of the partition to which Spark's shuffle sends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.harness import Harness, Provider, ProviderError, Row, Schema
from integration.store_cases import FAMILY_STORE, PARTITIONS, PLAIN, open_provider, write
from millpond.format import layout
from millpond.format.changelog import ChangelogReader
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import KeyGroupsInfo
from millpond.model.key_groups import KeyGroups
from millpond.storage import LocalStorage
from millpond.store.files import read_changelog_header

RESERVED_SLOT = b"\xff\xff"


@dataclass(frozen=True)
class Placed:
    """One column family of one operator, and the part of its key that Spark hashes."""

    operator: str
    family: str
    schema: Schema
    hashed: Callable[[Row], Row]  # state key -> partition key
    hashed_schema: str
    keys: list[Row]
    store: str = "default"
    variable: str | None = None  # as Spark's extractor wants it
    state_format: int | None = None
    like_spark: bool = True  # whether Spark's extractor is right
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def cross_key(self) -> bool:
        """Return whether the order of the family spans partition keys."""
        return self.schema.spec["type"] in ("range", "ts_prefix")


_G = [[t] for t in ("", "a", "b", "ü€", None, "x" * 50, "c", "d", "e", "f")]
_TWS = "transformWithStateInPandasExec"
_GROUP = "g string"
_EXPIRY = "expirationMs bigint, elementKey struct<g: string>"
_MAP_EXPIRY = (
    "expirationMs bigint, elementKey struct<key: struct<g: string>, userKey struct<u: bigint>>"
)
_MAP_KEY = "key struct<g: string>, userKey struct<u: bigint>"
_BY_TIME: dict[str, Any] = {"type": "range", "ordinals": [0]}


def _tws(
    family: str,
    key: str,
    keys: list[Row],
    hashed: Callable[[Row], Row],
    spec: dict[str, Any],
    variable: str,
    multi: bool = False,
) -> Placed:
    name, kind, _ = variable.split(":")
    schema = Schema(key, "v string", spec, multi=multi)
    return Placed(
        _TWS, family, schema, hashed, _GROUP, keys, variable=variable, variables={name: kind}
    )


def _placed() -> list[Placed]:
    pairs = [[t, n] for (t,) in _G for n in (0, 5)]
    none: dict[str, Any] = {"type": "none"}
    first: dict[str, Any] = {"type": "prefix", "columns": 1}

    def same(k: Row) -> Row:
        return k

    def but_last(k: Row) -> Row:
        return k[:-1]

    found = [
        Placed(
            op,
            "default",
            Schema("a string, b bigint", "v string"),
            same,
            "a string, b bigint",
            pairs,
        )
        for op in (
            "stateStoreSave",
            "dedupe",
            "dedupeWithinWatermark",
            "flatMapGroupsWithState",
            "applyInPandasWithState",
        )
    ]
    found.append(
        Placed(
            "StatefulStreamlineAggregate",
            "default",
            Schema("a string, b bigint", "v string"),
            same,
            "a string, b bigint",
            pairs,
            like_spark=False,  # Spark's factory does not know the operator
        )
    )
    found.append(
        Placed(
            "sessionWindowStateStoreSaveExec",
            "default",
            Schema("a string, sessionStartTime timestamp", "v string", first),
            but_last,
            "a string",
            pairs,
        )
    )
    for version in (2, 3):
        for name, schema, hashed in (
            ("left-keyToNumValues", Schema("f string", "value bigint"), same),
            ("right-keyWithIndexToValue", Schema("f string, index bigint", "v string"), but_last),
        ):
            keys = _G if hashed is same else pairs
            store, family = (name, "default") if version == 2 else ("default", name)
            found.append(
                Placed(
                    operator="symmetricHashJoin",
                    schema=schema,
                    hashed=hashed,
                    hashed_schema="f string",
                    keys=keys,
                    state_format=version,
                    store=store,
                    family=family,
                )
            )
    for name, spec in (("left-keyWithTsToValues", "ts_postfix"), ("right-tsWithKey", "ts_prefix")):
        schema = Schema(
            "f string, __event_time bigint not null", "v string", {"type": spec}, multi=True
        )
        # Spark 4.3.0's extractor takes the event time for a part of the partition key. So Spark's
        # own offline repartitioning would break such state.
        found.append(
            Placed(
                "symmetricHashJoin",
                name,
                schema,
                but_last,
                "f string",
                pairs,
                state_format=4,
                like_spark=False,
            )
        )
    mapped = [[k, [n]] for k in _G for n in (1, 2)]
    found += [
        _tws("v", _GROUP, _G, same, none, "v:ValueState:false"),
        _tws("l", _GROUP, _G, same, none, "l:ListState:true", multi=True),
        _tws("$rowCounter_l", _GROUP, _G, same, none, "l:ListState:true"),
        _tws("$min_l", _GROUP, _G, same, none, "l:ListState:true"),
        _tws("$count_l", _GROUP, _G, same, none, "l:ListState:true"),
        _tws("m", _MAP_KEY, mapped, lambda k: k[0], first, "m:MapState:true"),
        _tws(
            "$ttl_v",
            _EXPIRY,
            [[n, k] for k in _G for n in (7, -7)],
            lambda k: k[1],
            _BY_TIME,
            "v:ValueState:true",
        ),
        _tws(
            "$ttl_l",
            _EXPIRY,
            [[n, k] for k in _G for n in (7, -7)],
            lambda k: k[1],
            _BY_TIME,
            "l:ListState:true",
        ),
        _tws(
            "$ttl_m",
            _MAP_EXPIRY,
            [[7, k] for k in mapped],
            lambda k: k[1][0],
            _BY_TIME,
            "m:MapState:true",
        ),
    ]
    for clock in ("event", "proc"):
        timer = f"${clock}Timers"
        variable = f"{timer}:TimerState:false"
        key_first = "key struct<g: string>, expiryTimestampMs bigint"
        time_first = "expiryTimestampMs bigint, key struct<g: string>"
        found += [
            _tws(
                f"{timer}_keyToTimestamp",
                key_first,
                [[k, 7] for k in _G],
                lambda k: k[0],
                first,
                variable,
            ),
            _tws(
                f"{timer}_timestampToKey",
                time_first,
                [[7, k] for k in _G],
                lambda k: k[1],
                _BY_TIME,
                variable,
            ),
        ]
    return found


def _partitions(harness: Harness, placed: Placed) -> list[int]:
    """Return the partition of each key."""
    return harness.partitions_of(
        [placed.hashed(k) for k in placed.keys],
        key_schema=placed.hashed_schema,
        partitions=PARTITIONS,
    )


def _first(placed: Placed, partitions: list[int]) -> tuple[int, list[Row], list[Row]]:
    """Return the first key's partition, the keys that belong there, and the others."""
    partition = partitions[0]
    mine = [k for k, p in zip(placed.keys, partitions, strict=True) if p == partition]
    foreign = [k for k, p in zip(placed.keys, partitions, strict=True) if p != partition]
    assert mine and foreign
    return partition, mine, foreign


@pytest.mark.parametrize(
    "placed",
    _placed(),
    ids=lambda p: f"{p.operator}-{p.store}-{p.family}-{p.state_format or ''}".replace(
        "default", ""
    ),
)
def test_every_family_lies_in_the_key_groups_of_its_partition(
    harness: Harness, tmp_path: Path, placed: Placed
) -> None:
    """A row has the slot of a key group that its partition owns.

    A row of another partition marks the store as not scalable.
    """
    partitions = _partitions(harness, placed)
    if placed.like_spark:
        assert partitions == harness.spark_partitions_of(
            placed.keys,
            key_schema=placed.schema.key,
            partitions=PARTITIONS,
            operator=placed.operator,
            store=placed.store,
            cf=placed.family,
            format=placed.state_format,
            variable=placed.variable,
        )
    own_family = placed.family != "default"
    partition, mine, foreign = _first(placed, partitions)
    provider = open_provider(
        harness,
        tmp_path,
        operator=placed.operator,
        variables=placed.variables if placed.variables else None,
        schema=FAMILY_STORE if own_family else placed.schema,
        partition=partition,
        store=placed.store,
    )
    cf = {"cf": placed.family} if own_family else {}
    value = ["v"] if placed.schema.value == "v string" else [1]
    for version, keys in enumerate((mine, foreign)):
        store = write(provider, version, {placed.family: placed.schema} if own_family else {})
        store.put_many([(k, value) for k in keys], **cf)
        store.commit()
    provider.close()
    folder = (
        tmp_path
        / "state"
        / "0"
        / str(partition)
        / ("" if placed.store == "default" else placed.store)
    )
    for version, keys in ((1, mine), (2, foreign)):
        with (folder / f"{version}.changelog").open("rb") as file:
            changelog = ChangelogReader(file, name=file.name)
            families = {family.id: family for family in changelog.header.column_families}
            records = [(families[int.from_bytes(r.key[2:4], "big")], r.key) for r in changelog]
        slots = {family.slot_of(key) for family, key in records}
        info = changelog.header.key_groups
        groups = KeyGroups(info.max_parallelism, info.base)
        owned = {groups.slot(g) for g in range(partition, info.max_parallelism, PARTITIONS)}
        assert info.scalable == (version == 1), info.reason
        assert (slots <= owned) == (version == 1) and len(slots) == len(
            {str(placed.hashed(k)) for k in keys}
        )
        if placed.cross_key:
            assert {key[:2] for _, key in records} == {RESERVED_SLOT}
        if version == 2:
            assert "Spark did not place it" in info.reason
        assert info.by_key  # the reason says so, too


def _told(checkpoint: Path, partition: int, version: int) -> KeyGroupsInfo:
    """Return what a version's changelog says about its store."""
    key = layout.changelog_key(StoreId(0, partition, "default"), VersionId(version), 1)
    return read_changelog_header(LocalStorage(str(checkpoint)), key).key_groups


@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
@pytest.mark.parametrize("how", ["put", "get and put", "merge", "put list"])
def test_a_key_that_is_new_to_a_store_beyond_memory_is_checked(
    harness: Harness, tmp_path: Path, how: str, deleted: bool
) -> None:
    """The store asks the disk tier for it, and keeps a record that it is not there."""
    multi = how in ("merge", "put list")
    variable = "l:ListState:true" if multi else "v:ValueState:false"
    placed = _tws(variable[0], _GROUP, _G, lambda k: k, {"type": "none"}, variable, multi=multi)
    partition, mine, foreign = _first(placed, _partitions(harness, placed))
    conf = {"millpond.restore.warmUp": False}
    families = {placed.family: placed.schema}

    def opened() -> Provider:
        return open_provider(
            harness,
            tmp_path,
            operator=placed.operator,
            variables=placed.variables,
            partition=partition,
            conf=conf,
        )

    provider = opened()
    store = write(provider, 0, families)
    store.put_many([(k, ["v"]) for k in mine], cf=placed.family)
    store.commit()
    store = write(provider, 1, families)
    provider.snapshot()
    store.abort()
    provider.close()
    assert _told(tmp_path, partition, 1).scalable and [
        *tmp_path.glob(f"state/0/{partition}/1.manifest")
    ]
    provider = opened()
    store = write(provider, 1, families)
    key = foreign[0]
    if deleted:
        store.remove(key, cf=placed.family)
    if how == "get and put":
        assert store.get(key, cf=placed.family) is None
    if how == "merge":
        store.merge(key, ["v"], cf=placed.family)
    elif how == "put list":
        store.put_list(key, [["v"], ["w"]], cf=placed.family)
    else:
        store.put(key, ["v"], cf=placed.family)
    store.commit()
    provider.close()
    info = _told(tmp_path, partition, 2)
    assert not info.scalable and "Spark did not place it" in info.reason


def test_rows_of_which_nobody_knows_the_key_groups_are_told(
    harness: Harness, tmp_path: Path
) -> None:
    """They all have slot 0, whose rows a rescale would move elsewhere: it refuses the store."""
    provider = open_provider(harness, tmp_path, partition=1)
    for version, family in enumerate(("plain", "$ttl_of_no_variable")):
        store = write(provider, version, {family: PLAIN})
        if version == 1:
            store.put(["a", 1], ["v"], cf=family)
        store.commit()
    provider.close()
    for version in (1, 2):
        info = _told(tmp_path, 1, version)
        assert info.scalable == (version == 1) and info.by_key
    assert "'$ttl_of_no_variable'" in info.reason


@pytest.mark.parametrize(
    ("operator", "family"), [("stateStoreSave", "default"), ("globalLimit", "default")]
)
def test_what_lives_in_partition_0_alone_is_in_key_group_0(
    harness: Harness, tmp_path: Path, operator: str, family: str
) -> None:
    """Spark hashes nothing for an aggregation without keys, or for a limit."""
    schema = Schema("" if operator == "stateStoreSave" else "k string", "v string")
    provider = open_provider(harness, tmp_path, operator=operator, schema=schema)
    store = provider.store(0)
    store.put([] if operator == "stateStoreSave" else [None], ["v"])
    store.commit()
    provider.close()
    with (tmp_path / "state" / "0" / "0" / "1.changelog").open("rb") as file:
        changelog = ChangelogReader(file, name=file.name)
        assert [r.key[:2] for r in changelog] == [b"\0\0"]
    assert changelog.header.key_groups.scalable


class OnDisk:
    """A store whose rows are in its snapshot, and one of them in a changelog."""

    SCHEMA = Schema("k string, n bigint", "v string")

    def __init__(self, harness: Harness, checkpoint: Path, *, operator: str) -> None:
        self.harness, self.checkpoint = harness, checkpoint
        provider = self.provider(operator)
        keys: list[Row] = [["a", n] for n in range(60)]
        places = harness.partitions_of(keys, key_schema=self.SCHEMA.key, partitions=PARTITIONS)
        self.keys = [k for k, partition in zip(keys, places, strict=True) if partition == 0]
        for version in range(3):
            store = provider.store(version)
            store.put_many([(k, ["v"]) for k in (self.keys if version == 0 else self.keys[:1])])
            store.commit()
            provider.snapshot()
        provider.close()

    @property
    def metadata(self) -> Path:
        """Return Spark's metadata of the operator."""
        return self.checkpoint / "state" / "0" / "_metadata" / "metadata"

    def provider(self, operator: str) -> Provider:
        """Open the store as a Spark, or a Millpond, with this name for the operator."""
        if self.metadata.is_file():
            name(self.metadata, operator)
        return open_provider(
            self.harness,
            self.checkpoint,
            schema=self.SCHEMA,
            operator=operator,
            conf={"millpond.restore.warmUp": False},  # rows are looked for on disk
        )

    def check(self, operator: str) -> None:
        """Read each row, remove one, and look at all rows."""
        provider = self.provider(operator)
        store = provider.store(3)
        assert [store.get(k) for k in self.keys] == [["v"]] * len(self.keys)
        store.remove(self.keys[-1])
        assert len(list(store.scan())) == len(self.keys) - 1
        store.abort()
        provider.close()


def name(metadata: Path, operator: str) -> None:
    """Write another name of the operator into Spark's metadata."""
    version, text = metadata.read_text().splitlines()
    info = json.loads(text)
    info["operatorInfo"]["operatorName"] = operator
    metadata.write_text(f"{version}\n{json.dumps(info)}")


def test_rows_are_found_when_their_operator_becomes_known(harness: Harness, tmp_path: Path) -> None:
    """They all lie in slot 0, because nobody knew the columns that Spark hashes."""
    store = OnDisk(harness, tmp_path / "ckpt", operator="operatorOfTheFuture")
    store.check("operatorOfTheFuture")
    store.check("stateStoreSave")


@pytest.mark.parametrize("lost", [False, True])
def test_a_store_is_not_opened_when_its_rows_could_not_be_found(
    harness: Harness, tmp_path: Path, lost: bool
) -> None:
    """Each get would say that there is no row."""
    store = OnDisk(harness, tmp_path / "ckpt", operator="stateStoreSave")
    kept = store.metadata.read_text()
    provider = store.provider("stateStoreSave" if lost else "operatorOfTheFuture")
    if lost:
        store.metadata.unlink()
    with pytest.raises(ProviderError, match="FORMAT_DAMAGED" if lost else "FORMAT_TOO_NEW"):
        provider.store(3)
    provider.close()
    store.metadata.write_text(kept)
    store.check("stateStoreSave")
