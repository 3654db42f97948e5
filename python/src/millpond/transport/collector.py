"""Python's garbage collector in a worker that Spark uses for one task after the other."""

from __future__ import annotations

import gc

_partitions = 0


def spare_what_stays() -> None:
    """Keep the collector from what a worker has loaded. Every partition calls this as it begins.

    Spark's workers collect all garbage after each task. That looks at each object of each module
    that was ever imported, which takes longer than the rest of a small task. At the second
    partition of a worker the modules are there, and the garbage of the first one is gone. What is
    there then stays for as long as the worker. Later it would be more each time, and some of it
    would be garbage one day.
    """
    global _partitions
    _partitions += 1
    if _partitions == 2:
        gc.freeze()
