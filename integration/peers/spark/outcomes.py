"""What a run of a suite says, and what it means for Millpond."""

from __future__ import annotations

import dataclasses
import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from integration.peers.spark.reasons import Reason

# What a test says that was compiled for another Spark.
_DOES_NOT_LINK = re.compile(
    "(NoSuchMethod|NoSuchField|NoClassDefFound|AbstractMethod|IncompatibleClassChange)Error"
)
_OTHER_SPARK = "It was compiled for another Spark: the tests of this one are not published."
_NO_STORE = "It opens no store, of Millpond's or of Spark's."
_SPARKS_STORE = "It opens a store of Spark's alone: it makes it itself, or names no provider."


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A test as scalatest reports it. `test` is "" for the suite as a whole.

    Attributes:
        stores: how many stores of Millpond's began meanwhile.
        sparks_stores: how many of Spark's own did.
    """

    suite: str
    test: str
    said: str
    error: str
    stores: int
    sparks_stores: int = 0


@dataclasses.dataclass(frozen=True)
class Judged:
    """A suite's tests. `stale` are those that pass although the table says that they cannot."""

    passed: list[str]
    failed: dict[str, str]
    not_applicable: dict[str, str]
    stale: list[str]


def read(folder: Path, *, ended_only: bool = True) -> dict[str, list[Outcome]]:
    """Return what a run left in `folder`, by suite.

    Args:
        ended_only: without the suites that did not end.
    """
    file = folder / "stores"
    began = [line.split() for line in file.read_text().splitlines()] if file.is_file() else []
    stores, sparks = (
        sorted(int(ms) for ms, whose in began if whose == who) for who in ("millpond", "spark")
    )
    suites, ended = defaultdict[str, list[Outcome]](list), set[str]()
    report = folder / "report"
    for line in report.read_text().splitlines() if report.is_file() else ():
        event = json.loads(line)
        suite, said = str(event["suite"]), str(event["outcome"])
        if said in ("completed", "aborted"):
            ended.add(suite)
        if said != "completed":
            meanwhile = (event["began_ms"], event["ended_ms"])
            counts = (_within(stores, *meanwhile), _within(sparks, *meanwhile))
            suites[suite].append(Outcome(suite, event["test"], said, event["error"], *counts))
    return {suite: suites[suite] for suite in sorted(ended if ended_only else suites)}


def _within(moments: Sequence[int], first: int, last: int) -> int:
    """Return how many of the sorted moments are from `first` to `last`."""
    return bisect_right(moments, last) - bisect_left(moments, first)


def judge(
    outcomes: Sequence[Outcome], reasons: Sequence[Reason], *, other_spark: bool = False
) -> Judged:
    """Say of each test whether it passed, failed, or does not apply, by the table `reasons`.

    Args:
        other_spark: whether the tests are those of another minor version than the Spark that runs.
    """
    judged = Judged([], {}, {}, [])
    table = [reason for reason in reasons if other_spark or not reason.other_spark]
    for outcome in outcomes:
        suite = outcome.suite.rpartition(".")[2]
        known = next((r for r in table if r.fits(suite, outcome.test)), None)
        if outcome.said == "passed" and outcome.stores == 0:
            judged.not_applicable[outcome.test] = (
                _SPARKS_STORE if outcome.sparks_stores else _NO_STORE
            )
        elif outcome.said == "passed":
            judged.passed.append(outcome.test)
            if known is not None:
                judged.stale.append(outcome.test)
        elif outcome.said in ("ignored", "canceled"):
            judged.not_applicable[outcome.test] = "Spark's own run leaves it out, too."
        elif known is not None and re.search(known.error, outcome.error):
            judged.not_applicable[outcome.test] = known.why
        elif other_spark and _DOES_NOT_LINK.search(outcome.error):
            judged.not_applicable[outcome.test] = _OTHER_SPARK
        else:
            judged.failed[outcome.test] = outcome.error
    return judged
