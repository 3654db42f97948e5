"""Joins of two streams in each of Spark's four formats of their state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from integration.cases import CLICKS, EVENTS, KEYED, KEYS, VIEWS, Build, Case

STATE_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_SKIP_NULLS = "spark.sql.streaming.stateStore.skipNullsForStreamStreamJoins.enabled"
_BOTH = [(EVENTS, CLICKS), (EVENTS, VIEWS)]
_ODD = [(KEYED, KEYS), (KEYED, KEYS[::-1])]


def state_format(version: int, **more: str) -> Mapping[str, str]:
    """Return the setting for a format of join state."""
    return {STATE_FORMAT: str(version), **more}


def _side(frame: DataFrame, prefix: str) -> DataFrame:
    marked = frame.withWatermark("ts", "10 seconds")
    return marked.select(
        F.col("k").alias(f"{prefix}k"),
        F.col("ts").alias(f"{prefix}t"),
        F.col("v").alias(f"{prefix}v"),
    )


def _near() -> Column:
    five = F.expr("interval 5 seconds")
    return (F.col("rt") >= F.col("lt") - five) & (F.col("rt") <= F.col("lt") + five)


def by_time(how: str) -> Build:
    """Return a join of equal keys with near event times. Spark drops both sides by event time."""

    def build(i: list[DataFrame]) -> DataFrame:
        return _side(i[0], "l").join(_side(i[1], "r"), (F.col("lk") == F.col("rk")) & _near(), how)

    return build


def _same_window(how: str) -> Build:
    """Return a join whose key has the window. Spark drops state by key."""

    def build(i: list[DataFrame]) -> DataFrame:
        left, right = (
            _side(frame, side).select(
                f"{side}k", F.window(f"{side}t", "10 seconds").alias(f"{side}w"), f"{side}v"
            )
            for frame, side in zip(i, "lr", strict=True)
        )
        return left.join(right, (F.col("lk") == F.col("rk")) & (F.col("lw") == F.col("rw")), how)

    return build


def _null_safe(i: list[DataFrame]) -> DataFrame:
    return _side(i[0], "l").join(
        _side(i[1], "r"), F.col("lk").eqNullSafe(F.col("rk")) & _near(), "fullOuter"
    )


def _forever(i: list[DataFrame]) -> DataFrame:
    """Return a join without watermarks. Spark drops no state. Keys are of many types, or null."""
    left = i[0].select("s", "d", "b", "n", F.col("v").alias("lv"))
    right = i[1].select("s", "d", "b", "n", F.col("v").alias("rv"))
    return left.join(right, ["s", "d", "b", "n"])


def _filtered(i: list[DataFrame]) -> DataFrame:
    """Return a join with a condition on the left side only.

    Spark writes rows that fail the condition at once, unmatched. They need no state.
    """
    matched = (F.col("lk") == F.col("rk")) & _near() & (F.col("lv") % 2 == 0)
    return _side(i[0], "l").join(_side(i[1], "r"), matched, "leftOuter")


def _with_itself(i: list[DataFrame]) -> DataFrame:
    return _side(i[0], "l").join(_side(i[0], "r"), (F.col("lk") == F.col("rk")) & _near(), "inner")


def _then_counted(i: list[DataFrame]) -> DataFrame:
    joined = by_time("leftOuter")(i)
    return joined.groupBy(F.window("lt", "20 seconds").alias("w"), "lk").agg(
        F.count("rv").alias("n"), F.sum("lv").alias("s")
    )


_HOW = {
    "inner": "inner",
    "left": "leftOuter",
    "right": "rightOuter",
    "full": "fullOuter",
    "semi": "leftSemi",
}

# Formats 3 and 4 keep the same rows in different families. Where both take the same way through
# Spark, format 4 stands for both. Format 2 is Spark's default: `operator_cases` covers it. Spark
# refuses format 1 for a new query: `test_joins` covers that.
_CASES = [
    *(
        Case(
            f"join-{name}-v{version}",
            by_time(how),
            _BOTH,
            "append",
            checkpoint_format=1 + (n + version) % 2,
            fail_at=(n + version) % 3,
            conf=state_format(version),
        )
        for version in (3, 4)
        for n, (name, how) in enumerate(_HOW.items())
        if version == 4 or name in ("inner", "full")
    ),
    *(
        case
        for version in (3, 4)
        for case in (
            Case(
                f"join-window-left-v{version}",
                _same_window("leftOuter"),
                _BOTH,
                "append",
                2,
                conf=state_format(version),
            ),
            Case(
                f"join-null-safe-v{version}",
                _null_safe,
                _BOTH,
                "append",
                version - 2,
                conf=state_format(version),
            ),
            Case(
                f"join-odd-keys-v{version}",
                _forever,
                _ODD,
                "append",
                2,
                conf=state_format(version),
                random_keys=version == 4,
            ),
            Case(
                f"join-then-window-v{version}",
                _then_counted,
                _BOTH,
                "append",
                1,
                conf=state_format(version),
            ),
        )
        if version == 4 or case.name.startswith("join-odd-keys")
    ),
    Case("join-filtered-v4", _filtered, _BOTH, "append", 2, conf=state_format(4)),
    Case("join-with-itself-v4", _with_itself, _BOTH, "append", 1, conf=state_format(4)),
    Case(
        "join-skip-nulls-v3",
        by_time("fullOuter"),
        _BOTH,
        "append",
        1,
        conf=state_format(3, **{_SKIP_NULLS: "true"}),
    ),
]

CASES = [
    replace(
        case,
        operator=f"join of two streams, state format {case.conf[STATE_FORMAT]}",
        runs=3 if case.name.startswith("join-inner") else 2,
    )
    for case in sorted(_CASES, key=lambda case: case.conf[STATE_FORMAT])
]
