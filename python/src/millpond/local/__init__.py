"""Local RocksDB databases, seen from Python."""
