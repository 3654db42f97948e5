"""Control groups of Linux: processes under a limit of memory, as in a container."""

from __future__ import annotations

import os
from pathlib import Path

from integration.processes import wait_until


class ControlGroup:
    """A control group with a limit of memory, of version 1 or 2.

    Raises: OSError: this machine lets nobody make one.
    """

    def __init__(self, limit_bytes: int) -> None:
        first = Path("/sys/fs/cgroup/memory")
        self.is_first = (first / "memory.limit_in_bytes").exists()
        root = first if self.is_first else Path("/sys/fs/cgroup")
        self.path = root / f"millpond-test-{os.getpid()}"
        self._limit = "memory.limit_in_bytes" if self.is_first else "memory.max"
        self.path.mkdir()
        try:
            self.limit(limit_bytes)
        except OSError:
            self.path.rmdir()
            raise

    def enter(self) -> None:
        """Put this process into the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self, limit_bytes: int) -> None:
        """Set the limit. The kernel first takes back what it can of what is used."""
        (self.path / self._limit).write_text(str(limit_bytes))

    @property
    def resident_bytes(self) -> int:
        """Memory of its processes now, without the cache of files."""
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int(stat["total_rss" if self.is_first else "anon"])

    @property
    def kills(self) -> int:
        """How many processes the kernel killed."""
        text = (
            self.path / ("memory.oom_control" if self.is_first else "memory.events")
        ).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def remove(self) -> None:
        """Remove the group once its processes are gone."""

        def gone() -> bool:
            return not (self.path / "cgroup.procs").read_text().split()

        wait_until(gone, seconds=60, what="the end of all processes in the control group")
        self.path.rmdir()
