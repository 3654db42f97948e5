"""Way in and way out: `adopt` takes over a checkpoint of Spark's own state stores, `release` hands one back.

    import millpond
    millpond.adopt("/data/checkpoint", "/data/on-millpond")
    millpond.release("/data/on-millpond", "/data/back", provider="rocksdb")

The commands `millpond adopt` and `millpond release` call the same functions. Source: docs/guides/migrating.md.
"""

from millpond.migrating.migrate import MigrationReport, adopt, release

__all__ = ["MigrationReport", "adopt", "release"]
