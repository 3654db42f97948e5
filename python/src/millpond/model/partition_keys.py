"""Which part of a state key decided its partition (pure).

Spark places a state key by the hash of its *partition key*. How to take that out of the state key
depends on the operator, the store and the column family. Source: Spark 4.3.0, except join v4: there
Spark's own factory would also hash the event time, which is wrong, and this table is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WHOLE_KEY_OPERATORS = frozenset(
    {
        "stateStoreSave",
        "StatefulStreamlineAggregate",
        "dedupe",
        "dedupeWithinWatermark",
        "flatMapGroupsWithState",
        "applyInPandasWithState",
    }
)
# Spark replaces -0.0 by 0.0 in the keys of these. Others keep both.
ONE_ZERO_OPERATORS = frozenset(
    {
        "stateStoreSave",
        "StatefulStreamlineAggregate",
        "sessionWindowStateStoreSaveExec",
        "symmetricHashJoin",
    }
)
SINGLE_PARTITION_OPERATORS = frozenset({"globalLimit"})
TRANSFORM_WITH_STATE_IN_PANDAS = "transformWithStateInPandasExec"
TRANSFORM_WITH_STATE_OPERATORS = frozenset(
    {"transformWithStateExec", TRANSFORM_WITH_STATE_IN_PANDAS, "transformWithStateInPySparkExec"}
)
_JOIN_SIDES = ("left-", "right-")
_TIMERS = ("$eventTimers_", "$procTimers_")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKeyRule:
    """How to take the partition key out of a state key.

    `kind` is one of:
    - `whole`: all columns.
    - `drop_last`: all columns but the last `n`.
    - `nested`: the fields of the struct at `path`, a list of ordinals.
    - `none`: there is no partition key; the operator lives in partition 0, key group 0.
    - `unknown`: `reason` says why; such a store has no key groups and cannot be rescaled.
    """

    kind: str
    n: int = 0
    path: tuple[int, ...] = ()
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the rule as the protocol's JSON object."""
        rule: dict[str, Any] = {"kind": self.kind}
        if self.kind == "drop_last":
            rule["n"] = self.n
        elif self.kind == "nested":
            rule["path"] = list(self.path)
        elif self.kind == "unknown":
            rule["reason"] = self.reason
        return rule


WHOLE = PartitionKeyRule(kind="whole")
NONE = PartitionKeyRule(kind="none")


def partition_key_rule(
    operator_name: str,
    store_name: str,
    column_family: str,
    key_columns: Sequence[str] | None,
    spec: str | None = None,
    state_variables: Sequence[dict[str, Any]] = (),
) -> PartitionKeyRule:
    """Return the rule for one column family.

    Args:
        operator_name: as in Spark's operator metadata (`stateStoreSave`, `symmetricHashJoin`, ...).
        key_columns: names of the columns of the state key, as its encoder sees them; None if they
            are not known yet, [] for an operator without keys.
        spec: simple name of the key encoder spec (`NoPrefixKeyStateEncoderSpec`, ...); None if it
            is not known.
        state_variables: `stateVariables` of a transformWithState operator's properties
            (`stateName`, `stateVariableType`, `ttlEnabled`).
    """
    if operator_name in SINGLE_PARTITION_OPERATORS:
        return NONE
    if operator_name in WHOLE_KEY_OPERATORS:
        # Without grouping columns Spark hashes nothing: one partition has all rows (AllTuples).
        return NONE if key_columns is not None and not key_columns else WHOLE
    if operator_name == "sessionWindowStateStoreSaveExec":
        return _drop_last(1, key_columns)
    if operator_name == "symmetricHashJoin":
        return _join_rule(store_name if column_family == "default" else column_family, key_columns)
    if operator_name in TRANSFORM_WITH_STATE_OPERATORS:
        return _transform_with_state_rule(column_family, key_columns, spec, state_variables)
    if not operator_name:
        return _unknown(
            "the operator's name is not known: no operator metadata in the Spark checkpoint"
        )
    return _unknown(f"operator {operator_name} is not known to this version of millpond")


def with_dropped_variables(
    variables: Sequence[dict[str, Any]], families: Iterable[tuple[str, str, Sequence[str]]]
) -> tuple[dict[str, Any], ...]:
    """Return the state variables of a transformWithState, with those that the job has dropped.

    Spark keeps their rows, and names them in its metadata no more. What the keys of their expiry
    consist of, only the column family of the variable itself tells.

    Args:
        variables: as for `partition_key_rule`.
        families: name, kind of keys, and columns of keys of all column families.
    """
    known = {str(variable.get("stateName", "")) for variable in variables}
    dropped = (
        {"stateName": name, "stateVariableType": "MapState" if _is_map(kind, columns) else ""}
        for name, kind, columns in families
        if name not in known and not name.startswith("$")
    )
    return (*variables, *dropped)


def _is_map(kind: str, key_columns: Sequence[str]) -> bool:
    """Whether keys are those of a map state: only these have a prefix and just these columns."""
    return kind == "prefix" and list(key_columns) == ["key", "userKey"]


def lives_in_one_partition(operator_name: str, stores: Mapping[str, Sequence[str] | None]) -> bool:
    """Return whether all of an operator's state is in partition 0, for want of a partition key.

    Such operators are an aggregation without keys, and a limit.

    Args:
        stores: the columns of the key, by name of the store; None if they are not known, or if the
            store has several column families.
    """
    rules = (
        partition_key_rule(operator_name, name, "default", columns)
        for name, columns in stores.items()
    )
    return all(rule.kind == "none" for rule in rules)


def _join_rule(name: str, key_columns: Sequence[str] | None) -> PartitionKeyRule:
    side = next((side for side in _JOIN_SIDES if name.startswith(side)), None)
    if side is not None:
        what = name[len(side) :]
        if what == "keyToNumValues":
            return WHOLE
        # In v1 to v3 keyWithIndex appends the index. In v4 the other two append the event time.
        if what in ("keyWithIndexToValue", "keyWithTsToValues", "tsWithKey"):
            return _drop_last(1, key_columns)
    if name == "default":
        # Join v3 and v4 open the store with a dummy default column family, and never write to it.
        return WHOLE
    return _unknown(
        f"a stream-stream join has no store or column family {name!r} that millpond knows"
    )


def _transform_with_state_rule(
    column_family: str,
    key_columns: Sequence[str] | None,
    spec: str | None,
    variables: Sequence[dict[str, Any]],
) -> PartitionKeyRule:
    types = {str(v.get("stateName", "")): str(v.get("stateVariableType", "")) for v in variables}
    if column_family.startswith(_TIMERS):
        if column_family.endswith("_keyToTimestamp"):
            return _nested(0)
        if column_family.endswith("_timestampToKey"):
            return _nested(1)
        return _unknown(
            f"timer column family {column_family!r} is of a kind that millpond does not know"
        )
    if column_family.startswith("$ttl_"):
        # The key is {expirationMs, elementKey}. Of a map, elementKey is itself {key, userKey}.
        state_type = types.get(column_family[len("$ttl_") :])
        if state_type is None:
            return _unknown(
                f"the type of the state variable behind {column_family!r} is not in the operator"
                " metadata"
            )
        return _nested(1, 0) if state_type == "MapState" else _nested(1)
    if column_family.startswith(("$min_", "$count_", "$rowCounter_")):
        return WHOLE
    if column_family.startswith("$"):
        return _unknown(
            f"internal column family {column_family!r} is of a kind that millpond does not know"
        )
    if types.get(column_family) == "MapState":
        return _nested(0)
    # The metadata does not have the variable yet.
    kind = "prefix" if spec is not None and spec.startswith("PrefixKeyScan") else ""
    if column_family not in types and key_columns is not None and _is_map(kind, key_columns):
        return _nested(0)
    return WHOLE


def _drop_last(n: int, key_columns: Sequence[str] | None) -> PartitionKeyRule:
    if key_columns is not None and len(key_columns) < n:
        return _unknown(f"the key has {len(key_columns)} columns, expected at least {n}")
    if key_columns is not None and len(key_columns) == n:
        # No column is left to hash: the operator has no grouping columns, and lives in partition 0.
        return NONE
    return PartitionKeyRule(kind="drop_last", n=n)


def _nested(*path: int) -> PartitionKeyRule:
    return PartitionKeyRule(kind="nested", path=path)


def _unknown(reason: str) -> PartitionKeyRule:
    return PartitionKeyRule(kind="unknown", reason=reason)
