"""Keeps what a JVM writes to stderr away from the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from millpond.errors import MillpondError

_TAIL_BYTES = 8_192


@contextmanager
def quiet_jvm() -> Iterator[None]:
    """Inside this block a JVM may start. It keeps a stderr of its own: a file that nobody sees.

    What Python writes to `sys.stderr` is seen as before, a job's own words among it. The end of the
    file is shown if something fails that is no error of Millpond's. With MILLPOND_DEBUG=1, or if
    stderr is not the process's own, this does nothing.
    """
    if os.environ.get("MILLPOND_DEBUG") or not _is_own():
        yield
        return
    before = sys.stderr
    before.flush()
    terminal = os.dup(2)
    with (
        tempfile.TemporaryFile() as log,
        open(
            terminal,
            "w",
            buffering=1,
            encoding=before.encoding,
            errors=before.errors,
            closefd=False,
        ) as seen,
    ):
        os.dup2(log.fileno(), 2)
        sys.stderr = seen
        try:
            yield
        except MillpondError:
            raise
        except Exception:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _TAIL_BYTES))
            seen.write(log.read().decode("utf-8", "replace"))
            raise
        finally:
            sys.stderr = before
            os.dup2(terminal, 2)
            os.close(terminal)


def _is_own() -> bool:
    try:
        return sys.stderr.fileno() == 2
    except (AttributeError, OSError, ValueError):
        return False
