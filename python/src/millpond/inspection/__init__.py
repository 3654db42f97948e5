"""Looking at a Spark checkpoint from outside, without a JVM and without changing it."""

from millpond.inspection.logs import Problem
from millpond.inspection.overview import Overview, overview
from millpond.inspection.verify import VerifyReport, verify

__all__ = ["Overview", "Problem", "VerifyReport", "overview", "verify"]
