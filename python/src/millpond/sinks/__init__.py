"""Spark's file sink, whose log must hold every batch number: found, and kept whole by what uses up numbers without it.

`recorded`: what a query said of its sink. `file_log`: which entries a log needs (pure). `whole`: plans and writes them.
Source: docs/guides/sinks.md.
"""
