"""Delta tables as sinks. Delta Lake has jars for Spark 4.2, and none for 4.3.

`python -m integration.peers.delta` fetches them from Maven Central.
"""
