"""YARN of one resource manager and one node manager, beside HDFS. All are processes.

`python -m integration.peers.yarn` fetches their jars, and packs the Python for the containers.
"""
