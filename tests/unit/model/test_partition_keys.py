"""Partition key rules, against what Spark 4.3.0 does."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.model.partition_keys import partition_key_rule, with_dropped_variables

NO_PREFIX, PREFIX, RANGE = (
    "NoPrefixKeyStateEncoderSpec",
    "PrefixKeyScanStateEncoderSpec",
    "RangeKeyScanStateEncoderSpec",
)
WHOLE: dict[str, Any] = {"kind": "whole"}
NONE: dict[str, Any] = {"kind": "none"}
LAST: dict[str, Any] = {"kind": "drop_last", "n": 1}
VARIABLES = [
    {"stateName": "v", "stateVariableType": "ValueState", "ttlEnabled": True},
    {"stateName": "l", "stateVariableType": "ListState", "ttlEnabled": True},
    {"stateName": "m", "stateVariableType": "MapState", "ttlEnabled": True},
]


def nested(*path: int) -> dict[str, Any]:
    return {"kind": "nested", "path": list(path)}


@pytest.mark.parametrize(
    ("operator", "store", "family", "columns", "expected"),
    [
        ("stateStoreSave", "default", "default", ["a", "b"], WHOLE),
        ("stateStoreSave", "default", "default", [], NONE),
        ("stateStoreSave", "default", "default", None, WHOLE),
        ("StatefulStreamlineAggregate", "default", "default", ["a"], WHOLE),
        ("dedupe", "default", "default", ["a"], WHOLE),
        ("dedupeWithinWatermark", "default", "default", ["a"], WHOLE),
        ("flatMapGroupsWithState", "default", "default", ["a"], WHOLE),
        ("applyInPandasWithState", "default", "default", ["a"], WHOLE),
        ("globalLimit", "default", "default", ["a"], NONE),
        ("sessionWindowStateStoreSaveExec", "default", "default", ["a", "sessionStartTime"], LAST),
        ("sessionWindowStateStoreSaveExec", "default", "default", None, LAST),
        ("sessionWindowStateStoreSaveExec", "default", "default", ["sessionStartTime"], NONE),
        ("symmetricHashJoin", "left-keyToNumValues", "default", ["field0"], WHOLE),
        ("symmetricHashJoin", "right-keyToNumValues", "default", ["field0"], WHOLE),
        ("symmetricHashJoin", "left-keyWithIndexToValue", "default", ["field0", "index"], LAST),
        ("symmetricHashJoin", "right-keyWithIndexToValue", "default", ["field0", "index"], LAST),
        ("symmetricHashJoin", "default", "left-keyToNumValues", ["field0"], WHOLE),
        ("symmetricHashJoin", "default", "right-keyWithIndexToValue", ["field0", "index"], LAST),
        (
            "symmetricHashJoin",
            "default",
            "left-keyWithTsToValues",
            ["field0", "__event_time"],
            LAST,
        ),
        ("symmetricHashJoin", "default", "right-tsWithKey", ["field0", "__event_time"], LAST),
        ("symmetricHashJoin", "default", "default", ["dummy"], WHOLE),
    ],
)
def test_operators(
    operator: str, store: str, family: str, columns: list[str] | None, expected: dict[str, Any]
) -> None:
    assert partition_key_rule(operator, store, family, columns).to_json() == expected


@pytest.mark.parametrize(
    "operator",
    ["transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec"],
)
@pytest.mark.parametrize(
    ("family", "columns", "spec", "expected"),
    [
        ("default", ["value"], NO_PREFIX, WHOLE),
        ("v", ["value"], NO_PREFIX, WHOLE),
        ("l", ["value"], NO_PREFIX, WHOLE),
        ("$rowCounter_l", ["value"], NO_PREFIX, WHOLE),
        ("m", ["key", "userKey"], PREFIX, nested(0)),
        ("unlisted", ["key", "userKey"], PREFIX, nested(0)),
        ("$ttl_v", ["expirationMs", "elementKey"], RANGE, nested(1)),
        ("$ttl_l", ["expirationMs", "elementKey"], RANGE, nested(1)),
        ("$ttl_m", ["expirationMs", "elementKey"], RANGE, nested(1, 0)),
        ("$min_l", ["value"], NO_PREFIX, WHOLE),
        ("$count_l", ["value"], NO_PREFIX, WHOLE),
        ("$eventTimers_keyToTimestamp", ["key", "expiryTimestampMs"], PREFIX, nested(0)),
        ("$procTimers_keyToTimestamp", ["key", "expiryTimestampMs"], PREFIX, nested(0)),
        ("$eventTimers_timestampToKey", ["expiryTimestampMs", "key"], RANGE, nested(1)),
        ("$procTimers_timestampToKey", ["expiryTimestampMs", "key"], RANGE, nested(1)),
    ],
)
def test_transform_with_state(
    operator: str, family: str, columns: list[str], spec: str, expected: dict[str, Any]
) -> None:
    assert (
        partition_key_rule(operator, "default", family, columns, spec, VARIABLES).to_json()
        == expected
    )


@pytest.mark.parametrize(
    ("operator", "store", "family"),
    [
        ("", "default", "default"),
        ("someNewOperator", "default", "default"),
        ("symmetricHashJoin", "left-somethingNew", "default"),
        ("transformWithStateExec", "default", "$ttl_unlisted"),
        ("transformWithStateExec", "default", "$eventTimers_new"),
        ("transformWithStateExec", "default", "$new_l"),
    ],
)
def test_what_is_not_known_says_why(operator: str, store: str, family: str) -> None:
    rule = partition_key_rule(operator, store, family, ["a"], NO_PREFIX, VARIABLES).to_json()
    assert rule["kind"] == "unknown" and len(rule["reason"]) > 20


def test_the_expiry_of_variables_that_a_job_has_dropped() -> None:
    """Spark's metadata names them no more; it still names `kept`."""
    kept = {"stateName": "kept", "stateVariableType": "MapState"}
    families = [
        ("kept", "prefix", ["key", "userKey"]),
        ("$ttl_kept", "range", ["expirationMs", "elementKey"]),
        ("map", "prefix", ["key", "userKey"]),
        ("list", "point", ["k"]),
    ]
    variables = with_dropped_variables([kept], families)
    for name, path in (("kept", (1, 0)), ("map", (1, 0)), ("list", (1,))):
        columns = ["expirationMs", "elementKey"]
        rule = partition_key_rule(
            "transformWithStateExec", "default", f"$ttl_{name}", columns, "", variables
        )
        assert (rule.kind, rule.path) == ("nested", path), name
    unknown = partition_key_rule(
        "transformWithStateExec", "default", "$ttl_map", ["expirationMs", "elementKey"], "", [kept]
    )
    assert unknown.kind == "unknown"
