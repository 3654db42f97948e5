"""Which keys may be in a savepoint, and so in whatever is restored from one (pure).

Everything else in a Spark checkpoint belongs to the query that runs on it: where its state is, its
pins, a rescale, its heartbeats. In a savepoint from a stranger such files would lead the restored
query elsewhere.
"""

from __future__ import annotations

from millpond.format import layout, spark_names


def is_part(key: str, batch: int) -> bool:
    """Return whether `key` is a file of a savepoint of `batch`, other than the index and tables."""
    logs = {spark_names.commits_key(batch)} | {
        spark_names.offsets_key(n) for n in (batch - 1, batch, batch + 1) if n >= 0
    }
    if key in logs or key in (spark_names.QUERY_METADATA_KEY, layout.FORMAT_KEY):
        return True
    return spark_names.is_of_source(key) or spark_names.is_of_operator(key) or is_state(key)


def is_state(key: str) -> bool:
    """Return whether `key` is a changelog, a manifest or an SST. Canonical savepoints have tables
    instead.
    """
    return isinstance(
        layout.file_of(key), layout.ChangelogFile | layout.ManifestFile | layout.SstFile
    )
