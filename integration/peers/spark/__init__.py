"""Spark's own test suites, run on Millpond."""
