"""A Kafka broker of one process, and Spark's connector.

`python -m integration.peers.kafka` fetches both.
"""
