"""What Spark wrote: logs, metadata, state schemas, sources, sinks. And Spark's sessions and jobs.

This room also makes the entries that Millpond adds to Spark's logs, and reads the heartbeats of
running queries. It knows no store and no manifest. Stores, queries and operations call it. It
imports `storage` and the rooms below.
"""
