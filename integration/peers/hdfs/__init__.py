"""HDFS of one name node and one data node, each a process.

`python -m integration.peers.hdfs` fetches their jars.
"""
