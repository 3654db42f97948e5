"""State for Spark Structured Streaming: incremental snapshots, key groups, savepoints.

    import millpond
    spark = millpond.configure(SparkSession.builder).getOrCreate()

Importing this package imports neither pyspark nor anything else of weight.
"""

from importlib import import_module
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
from millpond.operations.lifecycle import QueryRescale, rescale_query, stop_with_savepoint
from millpond.spark.session import conf_lines, configure, jar
from millpond.state.lookups import lookup
from millpond.state.read_state import read_state

if TYPE_CHECKING:
    from millpond import api, checkpoint, savepoint, state
    from millpond.api import (
        adopt,
        adopted,
        check_storage,
        conf,
        erase,
        fork,
        release,
        rescale,
        take_over,
        undo_rescale,
    )
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
    "adopted",
    "api",
    "bootstrap",
    "check_storage",
    "checkpoint",
    "conf",
    "conf_lines",
    "configure",
    "erase",
    "fork",
    "jar",
    "lookup",
    "read_state",
    "release",
    "rescale",
    "rescale_query",
    "savepoint",
    "state",
    "stop_with_savepoint",
    "take_over",
    "undo_rescale",
]

_MODULES = frozenset({"api", "checkpoint", "savepoint", "state"})
_IN_SAVEPOINT = frozenset({"bootstrap"})
_IN_API = frozenset(
    {
        "adopt",
        "adopted",
        "check_storage",
        "conf",
        "erase",
        "fork",
        "release",
        "rescale",
        "take_over",
        "undo_rescale",
    }
)


def __getattr__(name: str) -> Any:
    """Import what tools need when it is first asked for: each agent imports this package."""
    if name in _MODULES:
        return import_module(f"millpond.{name}")
    if name in _IN_API:
        return getattr(import_module("millpond.api"), name)
    if name in _IN_SAVEPOINT:
        return getattr(import_module("millpond.savepoint"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
