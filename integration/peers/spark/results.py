"""The saved results of the suites, and the page that shows them.

`python -m integration.peers.spark.results` makes docs/reference/spark-suites.md anew.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import Counter
from pathlib import Path

from integration.jvm import REPO
from integration.peers import results
from integration.peers.spark import jars
from integration.peers.spark.outcomes import Judged
from integration.peers.spark.suites import SUITES

_FOLDER = Path(__file__).with_name("results")
PAGE = REPO / "docs" / "reference" / "spark-suites.md"

_HEAD = """\
# Spark's own suites

`make peer-spark` runs the tests that Spark's developers wrote for stateful queries. In that JVM
Millpond takes the place of RocksDB's and of the HDFS-backed provider where a setting names them.
Seven suites of stores and state variables make RocksDB's provider themselves: the names in their
class files are replaced when they are loaded. No suite is changed. The runs write this page.
`make peer-spark SUITES="TransformWithMapStateSuite"` runs some.

*Passed* counts tests that opened a store of Millpond's. A test that opened none is *not
applicable*, as is one that fails for a reason in `integration/peers/spark/reasons.py`: those
reasons are below the table. `StateStoreSuite` makes the HDFS-backed store itself; Spark's contract
of stores, which is in it, is in `RocksDBStateStoreSuite` too, and judges Millpond there.

No JVM here waits for the disk at a commit (`commit.fsync` is false): no suite kills the machine.
`StreamingQueryListenerSuite` wants that nobody else listens, and runs without Millpond's extension.
Without the option `realTime` Spark refuses real-time mode in a session that names Millpond. The
suites of that mode, none of whose queries has state, do not set it, and name no provider.
"""
_ROWS = """
| suite | tests of | run on Spark | date | passed | failed | not applicable |
|---|---|---|---|---|---|---|
"""


@dataclasses.dataclass(frozen=True)
class SuiteResult:
    """A run of a suite: the versions of its tests and of Spark; tests by outcome."""

    tests: str
    spark: str
    date: str
    passed: int
    failed: list[str]
    not_applicable: dict[str, str]

    @staticmethod
    def of(judged: Judged) -> SuiteResult:
        """Return the result of a run that ended now."""
        return SuiteResult(
            tests=jars.version(),
            spark=jars.spark_version(),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            passed=len(judged.passed),
            failed=sorted(judged.failed),
            not_applicable=dict(sorted(judged.not_applicable.items())),
        )

    @property
    def line(self) -> str:
        """The minor version of Spark, such as `4.3`."""
        return self.spark.rpartition(".")[0]


def save(suite: str, result: SuiteResult) -> None:
    """Write a suite's result over the one before, and make both pages anew.

    Args:
        suite: its short name.
    """
    folder = _FOLDER / result.line
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False)
    (folder / f"{suite}.json").write_text(text + "\n")
    PAGE.write_text(page())
    results.save(summary(saved()))


def saved() -> dict[str, SuiteResult]:
    """Return the saved results by suite and Spark, such as `TimerSuite on 4.3`, in the order in
    which the suites run.
    """
    order = list(SUITES)
    paths = [path for path in _FOLDER.glob("*/*.json") if path.stem in SUITES]
    paths.sort(key=lambda path: (path.parent.name, order.index(path.stem)))
    return {
        f"{path.stem} on {path.parent.name}": SuiteResult(**json.loads(path.read_text()))
        for path in paths
    }


def summary(suites: dict[str, SuiteResult]) -> results.Result:
    """Return the line of docs/reference/peers.md. It counts tests, not suites."""
    spark, tests, dates = (
        {getattr(r, name) for r in suites.values()} for name in ("spark", "tests", "date")
    )
    return results.Result(
        peer="spark",
        date=max(dates),
        versions={
            "Spark": ", ".join(sorted(spark)),
            "its tests": ", ".join(sorted(tests)),
        },
        passed=sum(result.passed for result in suites.values()),
        failed=[f"{suite}: {test}" for suite, result in suites.items() for test in result.failed],
        not_applicable={
            f"{suite}: {test}": why
            for suite, result in suites.items()
            for test, why in result.not_applicable.items()
        },
    )


def page() -> str:
    """Return docs/reference/spark-suites.md as the saved results make it."""
    found = saved()
    text = _HEAD + _ROWS + "".join(_row(suite, result) for suite, result in found.items())
    for line in dict.fromkeys(result.line for result in found.values()):
        missing = [f"`{suite}`" for suite in SUITES if f"{suite} on {line}" not in found]
        if missing:
            text += (
                f"\n## Not run on Spark {line} yet\n\nNo whole run of these suites is on record: "
            )
            text += f"{', '.join(missing)}.\n"
    return text + "".join(_details(suite, result) for suite, result in found.items())


def _row(suite: str, result: SuiteResult) -> str:
    counts = (result.passed, len(result.failed), len(result.not_applicable))
    cells = (f"`{suite.split()[0]}`", result.tests, result.spark, result.date, *counts)
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _details(suite: str, result: SuiteResult) -> str:
    lines = [f"- failed: {_plain(test)}\n" for test in result.failed]
    counted = Counter(result.not_applicable.values())
    for why in counted:
        tests = [test for test, reason in result.not_applicable.items() if reason == why]
        lines.append(f"- not applicable: {why}\n")
        lines += [f"    - {_plain(test)}\n" for test in tests]
    return f"\n## {suite}\n\n" + "".join(lines) if lines else ""


def _plain(test: str) -> str:
    return f"`{' '.join(test.replace('`', '').split())}`"


if __name__ == "__main__":
    PAGE.write_text(page())
