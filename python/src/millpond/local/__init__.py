"""This machine's disk: scratch directories that die with their process, local RocksDB databases.

Whoever needs local files calls it. It imports nothing of Millpond but the errors.
"""
