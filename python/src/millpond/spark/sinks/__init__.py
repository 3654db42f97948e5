"""Spark's file sink. Its log must hold every batch number.

Some commands use up batch numbers without the sink. They call this package to keep its log whole.
`recorded`: where a query writes to. `file_log`: which entries a log needs (pure). `keeping`: plans
and writes them. Source: docs/guides/sinks.md.
"""
