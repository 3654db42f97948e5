"""The work that `test_spread` spreads. Another process can only import it from a module."""

from __future__ import annotations

import os
import signal

from millpond.errors import ErrorKind, FormatError
from millpond.storage.given import given


class Unsendable(Exception):
    """An error that its text cannot make again."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a + b)


def work(shared: str, job: int) -> str:
    """Return what is shared, and the job. A negative job fails in its own way."""
    if job == -1:
        raise FormatError("broken", kind=ErrorKind.SAVEPOINT_DAMAGED)
    if job == -2:
        raise Unsendable(1, 2)
    if job == -3:
        os._exit(9)
    if shared == "interrupted":
        signal.raise_signal(signal.SIGINT)
        return str(job)
    if shared == "endpoint":
        return str(given().settings.s3.endpoint)
    return str(os.getpid()) if shared == "pid" else f"{shared}{job}"
