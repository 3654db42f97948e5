"""State for Spark Structured Streaming: incremental snapshots, key groups, savepoints.

    import millpond
    spark = millpond.configure(SparkSession.builder).getOrCreate()

Importing this package imports neither pyspark nor anything else of weight.
"""

from millpond._version import __version__
from millpond.errors import (
    AgentError,
    CommitUnknownError,
    ConflictError,
    ErrorKind,
    FencedError,
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
from millpond.stopping import stop_with_savepoint

__all__ = [
    "AgentError",
    "CommitUnknownError",
    "ConflictError",
    "ErrorKind",
    "FencedError",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "MillpondError",
    "NotFoundError",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "conf_lines",
    "configure",
    "jar",
    "read_state",
    "stop_with_savepoint",
]
