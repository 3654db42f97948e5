"""State for Spark Structured Streaming: incremental snapshots, key groups, savepoints.

    import millpond
    spark = millpond.configure(SparkSession.builder).getOrCreate()

Importing this package imports neither pyspark nor anything else of weight.
"""

from typing import TYPE_CHECKING, Any

from millpond._version import __version__
from millpond.errors import (
    AgentError,
    ConflictError,
    ErrorKind,
    FormatError,
    InternalError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.reading import read_state
from millpond.session import conf_lines, configure, jar
from millpond.stopping import QueryRescale, rescale_query, stop_with_savepoint

if TYPE_CHECKING:
    from millpond.api import rescale
    from millpond.migrating import adopt, release
    from millpond.savepoint import bootstrap

__all__ = [
    "AgentError",
    "ConflictError",
    "ErrorKind",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "MillpondError",
    "NotFoundError",
    "QueryRescale",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "adopt",
    "bootstrap",
    "conf_lines",
    "configure",
    "jar",
    "read_state",
    "release",
    "rescale",
    "rescale_query",
    "stop_with_savepoint",
]

_IN_API = frozenset({"rescale"})
_IN_MIGRATING = frozenset({"adopt", "release"})
_IN_SAVEPOINT = frozenset({"bootstrap"})


def __getattr__(name: str) -> Any:
    """Import what tools need when it is first asked for: every executor's agent imports this package."""
    if name in _IN_API:
        from millpond import api

        return getattr(api, name)
    if name in _IN_MIGRATING:
        from millpond import migrating

        return getattr(migrating, name)
    if name in _IN_SAVEPOINT:
        from millpond import savepoint

        return getattr(savepoint, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
