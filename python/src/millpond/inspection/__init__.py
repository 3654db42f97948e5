"""Looking at a Spark checkpoint from outside, without a JVM and without changing it."""

from millpond.inspection.overview import Overview, overview
from millpond.inspection.verify import Problem, VerifyReport, verify

__all__ = ["Overview", "Problem", "VerifyReport", "overview", "verify"]
