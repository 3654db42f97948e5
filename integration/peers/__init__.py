"""Tests beside other systems, which Maven fetches from Maven Central: `make peer-kafka`.

They have the mark `peer`. No other target runs them, so no other target needs Maven Central for
them.
"""
