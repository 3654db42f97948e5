"""The way in and the way out: `adopt` takes over a checkpoint of Spark's own state stores,
`release` hands one back.

    import millpond
    millpond.adopt("/data/checkpoint", "/data/on-millpond")
    millpond.release("/data/on-millpond", "/data/back", provider="rocksdb")

`plan` says what is copied (pure), `jvm` runs the copy in Spark's JVM. The commands `millpond adopt`
and `millpond release` and the API call this package. It may import `savepoint`, `output`, and the
rooms below `operations`. Source: docs/guides/migrating.md.
"""

from millpond.operations.migrate.migrate import MigrationReport, adopt, release

__all__ = ["MigrationReport", "adopt", "release"]
