"""Wrong calls of a store's methods: each has its error, and leaves the store usable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from integration.depth import deep
from integration.harness import Harness, Provider, ProviderError, Row, Schema, providers_to_test
from integration.jvm import MILLPOND
from integration.store_cases import FAMILIES, LISTS, PLAIN, PREFIX, open_provider, write
from millpond.format.changelog import ChangelogReader
from tests.examples import changelog_bytes

MISSING = "STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY"
UNSUPPORTED = "STATE_STORE_UNSUPPORTED_OPERATION"
INVALID_NAME = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
RESERVED_NAME = "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"
KEY_FORMAT = "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE"
VALUE_FORMAT = "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE"
GONE = {"cf": "gone", "as_key": PLAIN.key, "as_value": PLAIN.value}
KEY, VALUE = ["a", 1], ["v"]


@dataclass(frozen=True)
class Bad:
    """One wrong call, and the condition that Millpond throws.

    `like_spark`: whether Spark's RocksDB store throws the same condition.
    """

    name: str
    do: str
    arguments: dict[str, Any]
    condition: str
    like_spark: bool = True


_ON_MISSING: dict[str, dict[str, Any]] = {
    "get": {"k": KEY},
    "exists": {"k": KEY},
    "put": {"k": KEY, "v": VALUE},
    "remove": {"k": KEY},
    "values": {"k": KEY},
    "merge": {"k": KEY, "v": VALUE},
    "put_list": {"k": KEY, "v": [VALUE]},
    "scan": {},
    "multi_get": {"keys": [KEY]},
}
BAD = [
    *[
        Bad(f"missing-{do}", do, {**GONE, **arguments}, MISSING)
        for do, arguments in _ON_MISSING.items()
    ],
    *[
        Bad(
            f"create-{name!r}",
            "create_cf",
            {"cf": name, "key": "k string", "value": "v string"},
            condition,
        )
        for name, condition in {
            "": INVALID_NAME,
            " padded": INVALID_NAME,
            "default": INVALID_NAME,
            "$mine": RESERVED_NAME,
        }.items()
    ],
    Bad("remove-default", "remove_cf", {"cf": "default"}, INVALID_NAME),
    Bad("remove-internal", "remove_cf", {"cf": "$x"}, RESERVED_NAME),
    # Spark's store checks the form of rows only when it reads them, and only without column
    # families.
    Bad(
        "key-of-another-schema",
        "put",
        {"cf": "plain", "k": ["a"], "as_key": "k string", "v": VALUE},
        KEY_FORMAT,
        False,
    ),
    Bad(
        "value-of-another-schema",
        "put",
        {"cf": "plain", "k": KEY, "v": ["a", 1], "as_value": "v string, w bigint"},
        VALUE_FORMAT,
        False,
    ),
    # For these Spark's store throws an IllegalArgumentException or IllegalStateException, without a
    # condition.
    Bad(
        "range-scan-without-order",
        "scan",
        {"cf": "plain", "scan": "range", "to": KEY},
        UNSUPPORTED,
        False,
    ),
    Bad(
        "range-scan-over-prefix",
        "scan",
        {"cf": "prefix", "scan": "range", "to": KEY},
        UNSUPPORTED,
        False,
    ),
    Bad(
        "delete-range-without-order",
        "delete_range",
        {"cf": "plain", "from": KEY, "to": KEY},
        UNSUPPORTED,
        False,
    ),
    Bad(
        "prefix-scan-without-prefix",
        "scan",
        {"cf": "plain", "scan": "prefix", "k": KEY},
        UNSUPPORTED,
        False,
    ),
    Bad("values-of-one-value", "values", {"cf": "plain", "k": KEY}, UNSUPPORTED, False),
    Bad("merge-onto-one-value", "merge", {"cf": "plain", "k": KEY, "v": VALUE}, UNSUPPORTED, False),
    Bad(
        "list-onto-one-value",
        "put_list",
        {"cf": "plain", "k": KEY, "v": [VALUE]},
        UNSUPPORTED,
        False,
    ),
    Bad("multi-scan-of-one-value", "scan", {"cf": "plain", "multi": True}, UNSUPPORTED, False),
    # Spark's store takes another definition without an error, and then reads the old rows by it.
    # Spark's driver refuses earlier.
    Bad(
        "value-schema-changed",
        "create_cf",
        {"cf": "plain", "key": PLAIN.key, "value": "v string, w bigint"},
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        False,
    ),
    Bad(
        "key-schema-changed",
        "create_cf",
        {"cf": "plain", "key": "k string", "value": PLAIN.value},
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        False,
    ),
    Bad(
        "encoder-changed",
        "create_cf",
        {"cf": "plain", "key": PLAIN.key, "value": PLAIN.value, "spec": dict(PREFIX.spec)},
        "MILLPOND_INVALID_ARGUMENT",
        False,
    ),
    Bad(
        "one-value-becomes-many",
        "create_cf",
        {"cf": "plain", "key": PLAIN.key, "value": PLAIN.value, "multi": True},
        "MILLPOND_INVALID_ARGUMENT",
        False,
    ),
    Bad(
        "removed-family-used",
        "get",
        {"cf": "dropped", "k": KEY, "as_key": PLAIN.key, "as_value": PLAIN.value},
        MISSING,
    ),
]


@pytest.mark.parametrize(
    "provider_class",
    [c if c == MILLPOND else deep(c) for c in providers_to_test()],
    ids=lambda c: c.rsplit(".", 1)[1],
)
def test_bad_input_has_its_error_and_leaves_the_store_usable(
    harness: Harness, tmp_path: Path, provider_class: str
) -> None:
    provider = open_provider(harness, tmp_path, provider_class=provider_class)
    expected: list[tuple[Row, Row]] = []
    for version, bad in enumerate(BAD):
        store = write(provider, version, {**FAMILIES, "dropped": PLAIN})
        assert store.remove_cf("dropped")
        if provider_class == MILLPOND or bad.like_spark:
            (error,) = harness.call_all([{"do": bad.do, "s": store.name, **bad.arguments}])
            assert isinstance(error, ProviderError), f"{bad.name}: no error but {error}"
            if bad.condition.startswith("MILLPOND_"):
                assert bad.condition in error.text and "Hint: " in error.text, error
            else:
                assert error.condition == bad.condition, f"{bad.name}: {error}"
        store.put([bad.name, 0], ["after"], cf="plain")
        store.merge([bad.name, 0], ["after"], cf="lists")
        expected.append(([bad.name, 0], ["after"]))
        assert sorted(store.scan(cf="plain")) == sorted(expected), bad.name
        assert store.commit().version == version + 1
    provider.close()
    provider = open_provider(harness, tmp_path, provider_class=provider_class)
    store = write(provider, len(BAD))
    assert sorted(store.scan(cf="plain")) == sorted(store.scan(cf="lists")) == sorted(expected)
    assert "dropped" not in store.cf_names()
    store.abort()
    provider.close()


@pytest.mark.parametrize(("begun", "asked"), [(1, 2), (2, 1)])
def test_a_session_of_another_format_reads_and_commits_nothing(
    harness: Harness, tmp_path: Path, begun: int, asked: int
) -> None:
    """Spark 4.2 takes the format from the session. It would not find the next version's id again,
    or would look for an id that the version before has not.
    """

    def opened(checkpoint_format: int) -> Provider:
        conf = {"checkpointFormatVersion": str(checkpoint_format)}
        return open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=conf)

    provider = opened(begun)
    store = provider.store(0)
    store.put(KEY, VALUE)
    first = store.commit()
    assert (first.id is None) == (begun == 1)
    provider.close()
    files = sorted((tmp_path / "state").rglob("*"))
    provider = opened(asked)
    for upgraded in (False, True):
        read = provider.read_store(1, first.id) if upgraded else None
        store = provider.upgrade(read, 1, first.id) if read else provider.store(1, first.id)
        assert store.scan() == [(KEY, VALUE)]
        store.put(["b", 2], VALUE)
        with pytest.raises(
            ProviderError,
            match=rf"MILLPOND_CHECKPOINT_FORMAT_CHANGED.*the session asks for format {asked}",
        ):
            store.commit()
        store.abort()
    provider.close()
    assert sorted((tmp_path / "state").rglob("*")) == files
    provider = opened(begun)
    store = provider.store(1, first.id)
    assert store.scan() == [(KEY, VALUE)]
    assert store.commit().base_id == first.id
    provider.close()


def test_a_reader_may_take_a_family_of_the_operator_for_one_of_the_user(
    harness: Harness, tmp_path: Path
) -> None:
    """Spark's state reader does so with a join's index by time. The family stays what it is."""
    provider = open_provider(harness, tmp_path)
    store = provider.store(0)
    store.create_cf("index", PLAIN, internal=True)
    store.put(KEY, VALUE, cf="index")
    store.commit()
    provider.close()
    provider = open_provider(harness, tmp_path)
    store = provider.store(1)
    store.create_cf("index", PLAIN)
    assert store.scan(cf="index") == [(KEY, VALUE)]
    store.commit()
    assert store.metrics()["keys"] == 0, "rows of an internal family count as the user's"
    store = provider.store(2)
    store.create_cf("index", PLAIN, internal=True)
    assert store.scan(cf="index") == [(KEY, VALUE)]
    store.abort()
    provider.close()


def test_rows_of_another_schema_are_refused(harness: Harness, tmp_path: Path) -> None:
    """The store refuses them at a put.

    Like Spark's RocksDB store, it also refuses them when a query with another schema reads them.
    """
    schema = Schema(PLAIN.key, "v string, w bigint")
    provider = open_provider(harness, tmp_path, schema=schema, operator="dedupe")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"k": ["a"], "as_key": "k string", "v": ["v", 1]}, KEY_FORMAT),
        ({"k": KEY, "v": ["v"], "as_value": "v string"}, VALUE_FORMAT),
    ]
    for version, (arguments, condition) in enumerate(wrong):
        store = provider.store(version)
        (error,) = harness.call_all([{"do": "put", "s": store.name, **arguments}])
        assert isinstance(error, ProviderError) and error.condition == condition, error
        store.put(KEY, ["after", version])
        assert store.commit().version == version + 1
    assert provider.store(2).scan() == [(KEY, ["after", 1])]
    provider.close()
    for provider_class in providers_to_test():
        folder = tmp_path / provider_class
        provider = open_provider(
            harness, folder, provider_class=provider_class, schema=schema, operator="dedupe"
        )
        store = provider.store(0)
        store.put(KEY, ["v", 1])
        store.commit()
        provider.close()
        other = Schema(PLAIN.key, "v string, w bigint, x string, y string")
        provider = open_provider(
            harness, folder, provider_class=provider_class, schema=other, operator="dedupe"
        )
        read = provider.read_store(1)
        (error,) = harness.call_all([{"do": "get", "s": read.name, "k": KEY}])
        assert isinstance(error, ProviderError) and error.condition == VALUE_FORMAT, error
        read.release()
        provider.close()
    # Spark does not look at columns of fixed width: they would be read from behind the row.
    longer = Schema(PLAIN.key, "v string, w bigint, x bigint, y bigint, z bigint")
    provider = open_provider(harness, tmp_path / MILLPOND, schema=longer, operator="dedupe")
    read = provider.read_store(1)
    (error,) = harness.call_all([{"do": "get", "s": read.name, "k": KEY}])
    assert isinstance(error, ProviderError) and error.condition == VALUE_FORMAT, error
    read.release()
    provider.close()


def test_a_store_without_families_refuses_them_and_stays_usable(
    harness: Harness, tmp_path: Path
) -> None:
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    store = provider.store(0)
    for call in (
        lambda: store.create_cf("x", PLAIN),
        lambda: store.register_cf("x", PLAIN),
        lambda: store.remove_cf("x"),
    ):
        with pytest.raises(ProviderError) as caught:
            call()
        assert caught.value.condition == UNSUPPORTED
    store.put(KEY, VALUE)
    assert store.commit().version == 1
    assert provider.store(1).scan() == [(KEY, VALUE)]
    provider.close()


def _give_number(changelog: Path, family: str, number: int) -> None:
    """Give a column family without rows another number."""
    with open(changelog, "rb") as file:
        reader = ChangelogReader(file)
        records = list(reader)
    families = tuple(
        replace(one, id=number) if one.name == family else one
        for one in reader.header.column_families
    )
    header = replace(reader.header, column_families=families)
    changelog.write_bytes(changelog_bytes(header, records))


def test_a_column_family_for_which_no_number_is_left(harness: Harness, tmp_path: Path) -> None:
    """Keys have two bytes for it: number 65,536 was that of the default family in them."""
    provider = open_provider(harness, tmp_path)
    store = provider.store(0)
    store.create_cf("plain", PLAIN)
    store.commit()
    provider.close()
    _give_number(tmp_path / "state/0/0/1.changelog", "plain", 65_535)
    for version in (1, 2):
        provider = open_provider(harness, tmp_path)
        store = provider.store(version)
        store.create_cf("plain", PLAIN)
        with pytest.raises(
            ProviderError, match=r"MILLPOND_UNSUPPORTED.*'lists' would be number 65536.*Hint: "
        ):
            store.create_cf("lists", LISTS)
        store.put([f"{version}", version], VALUE, cf="plain")
        assert len(store.scan(cf="plain")) == version
        store.commit()
        provider.snapshot()
        provider.close()
