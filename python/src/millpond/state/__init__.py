"""The state of queries as tables: read from a Spark checkpoint or a savepoint, without a JVM. Tables need the extra `tools`."""
