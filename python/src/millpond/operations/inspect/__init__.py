"""Looks at a Spark checkpoint from outside, without a JVM and without changing it.

`overview` shows what is there, `verify` reads every byte, `skew` counts rows by key group. The
command line, the API and `savepoint` call this package. It may import the rooms below `operations`.
"""

from millpond.operations.inspect.logs import Problem
from millpond.operations.inspect.overview import Overview, overview
from millpond.operations.inspect.verify import VerifyReport, verify

__all__ = ["Overview", "Problem", "VerifyReport", "overview", "verify"]
