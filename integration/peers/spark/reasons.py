"""The tests of Spark that do not apply to Millpond, and why: a table that is reviewed.

A test that passes although it is here is an error in this table, and fails the run.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Reason:
    """Tests that fail for one reason. All but `why` are regular expressions.

    Attributes:
        suite: matches the short names of whole suites.
        test: is in the names of the tests.
        error: is in what they say. A test that fails with other words counts as failed.
        why: one line.
    """

    suite: str
    test: str
    error: str
    why: str

    def fits_suite(self, suite: str) -> bool:
        """Return whether `suite`, a short name, is one of this reason's."""
        return re.fullmatch(self.suite, suite) is not None

    def fits(self, suite: str, test: str) -> bool:
        """Return whether the test is one of this reason's."""
        return self.fits_suite(suite) and re.search(self.test, test) is not None


# The Spark checkpoints among the resources of Spark's tests.
_FOREIGN = "MILLPOND_FOREIGN_CHECKPOINT"
_GOLDEN = "It opens a Spark checkpoint that another provider wrote, which Millpond refuses."

REASONS = (
    Reason("StreamingDeduplicationSuite", r"SPARK-39650.*sparkVersion=", _FOREIGN, _GOLDEN),
    Reason(
        "(RocksDBStateStore)?StreamingAggregationSuite",
        "recovery from checkpoint uses state format version 1",
        _FOREIGN,
        _GOLDEN,
    ),
    Reason(
        "RocksDBWith.*StateDataSourceChangeDataReaderSuite",
        "^read stream-stream join state change feed",
        "Results do not match",
        "It wants each write of a batch; a changelog of Millpond's holds the net change of a key.",
    ),
)
