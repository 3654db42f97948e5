"""Errors. A class says what the caller does, a kind says what happened, a hint says what to run.

    MillpondError
    ├── NotFoundError (LookupError)     the thing asked for is not there
    ├── InvalidInputError (ValueError)  the caller or its configuration is wrong: correct it
    ├── ConflictError                   somebody else was first: reload, then retry or stop
    ├── UnavailableError                disk, storage or a lock refuses: mend it or wait, retry
    ├── FormatError                     stored bytes are damaged: take an older snapshot, or a copy
    ├── AgentError                      the agent did not start, answer or survive
    ├── UnsupportedError                this build cannot do that: upgrade or choose another way
    └── InternalError                   a bug of Millpond: report it

`table.py` declares the kinds, and the class, the meaning and the hint of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millpond.errors.table import REMOVED, TABLE, ErrorKind

__all__ = [
    "ERRORS",
    "REMOVED",
    "AgentError",
    "ConflictError",
    "ErrorInfo",
    "ErrorKind",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "MillpondError",
    "NotFoundError",
    "UnavailableError",
    "UnsupportedError",
    "error",
]


class MillpondError(Exception):
    """Root of every error that Millpond raises on purpose.

    Args:
        message: what happened, with the names of the file, store or option. It never holds keys,
            values or tokens.
        kind: stable code; None: the default kind of the class.
        hint: what to run or change; empty: the default hint of the kind.
    """

    default_kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(self, message: str, *, kind: ErrorKind | None = None, hint: str = "") -> None:
        # The classes must be picklable: `args` holds the message alone, and `__dict__` carries kind
        # and hint.
        super().__init__(message)
        self.kind: ErrorKind = kind if kind is not None else type(self).default_kind
        self.hint: str = hint or ERRORS[self.kind].hint

    @property
    def message(self) -> str:
        """The message without kind and hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        """Return the message and the hint: a notebook shows nothing else of an error."""
        return f"{self.message.rstrip('.')}. Hint: {self.hint}" if self.hint else self.message


class NotFoundError(MillpondError, LookupError):
    """What was asked for is not there."""

    default_kind = ErrorKind.OBJECT_NOT_FOUND


class InvalidInputError(MillpondError, ValueError):
    """The caller, its configuration or its Spark checkpoint is wrong.

    Correct it; a retry changes nothing.
    """

    default_kind = ErrorKind.INVALID_ARGUMENT


class ConflictError(MillpondError):
    """Somebody else was first. Reload, then retry or stop."""

    default_kind = ErrorKind.OBJECT_EXISTS


class UnavailableError(MillpondError):
    """Disk, storage, memory or a lock refuses. Mend it or wait, then retry."""

    default_kind = ErrorKind.STORAGE_UNAVAILABLE


class FormatError(MillpondError):
    """Stored bytes are damaged. Fall back to an older snapshot, or restore a copy."""

    default_kind = ErrorKind.FORMAT_DAMAGED


class AgentError(MillpondError):
    """The agent did not start, answer or survive."""

    default_kind = ErrorKind.AGENT_LOST


class UnsupportedError(MillpondError):
    """This build cannot do that. Upgrade, or choose another way."""

    default_kind = ErrorKind.UNSUPPORTED


class InternalError(MillpondError):
    """A bug of Millpond. Report it."""

    default_kind = ErrorKind.INTERNAL


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """One row of the table of errors."""

    error_class: type[MillpondError]  # what the caller does
    meaning: str  # what happened, one line
    hint: str  # what to run or change, if the raiser knows nothing better


_CLASSES = {
    cls.__name__: cls
    for cls in (
        NotFoundError,
        InvalidInputError,
        ConflictError,
        UnavailableError,
        FormatError,
        AgentError,
        UnsupportedError,
        InternalError,
    )
}

ERRORS: dict[ErrorKind, ErrorInfo] = {
    kind: ErrorInfo(_CLASSES[name], meaning, hint) for kind, (name, meaning, hint) in TABLE.items()
}


def error(kind: ErrorKind, message: str, *, hint: str = "") -> MillpondError:
    """Return (do not raise) the error of `kind`. The table `ERRORS` decides its class."""
    return ERRORS[kind].error_class(message, kind=kind, hint=hint)
