"""Reads from a Spark checkpoint which micro-batches began and committed, and which state exists."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

STATE_FILE = re.compile(r"(\d+)(?:_[^.]+)?\.(?:changelog|zip|delta|snapshot|manifest)\Z")


@dataclass(frozen=True, slots=True)
class QueryLog:
    """The Spark checkpoint of one query."""

    root: Path

    def begun(self) -> int:
        """Return the newest batch in the offset log; -1 for none. Spark has decided its input."""
        return _newest(self.root / "offsets")

    def committed(self) -> int:
        """Return the newest batch in the commit log; -1 for none. Spark will not run it again."""
        return _newest(self.root / "commits")

    def running(self) -> int | None:
        """Return the batch that has begun and is not committed, if there is one."""
        begun = self.begun()
        return begun if begun > self.committed() else None

    def files_begun(self) -> int:
        """Return how many files of its slowest feed the newest begun batch reached."""
        begun = self.begun()
        if begun < 0:
            return 0
        try:
            text = (self.root / "offsets" / str(begun)).read_text()
        except FileNotFoundError:
            return 0  # Spark purged the entry meanwhile; the next call sees a newer one
        return min(
            (int(offset) + 1 for offset in re.findall(r'"logOffset":(\d+)', text)), default=0
        )

    def stores_written(self, batch: int) -> tuple[int, int]:
        """Return how many stores already hold the version of `batch`, and how many stores exist."""
        stores: dict[Path, bool] = {}
        for folder, _, names in os.walk(self.root / "state"):
            versions = [int(match[1]) for match in map(STATE_FILE.match, names) if match]
            if versions:
                stores[Path(folder)] = batch + 1 in versions
        return sum(stores.values()), len(stores)

    def state_bytes(self) -> int:
        """Return the bytes of all files of state. Links count once."""
        sizes: dict[int, int] = {}
        for folder, _, names in os.walk(self.root / "state"):
            for name in names:
                try:
                    status = os.stat(os.path.join(folder, name))
                except FileNotFoundError:
                    continue  # a running job collected it
                sizes[status.st_ino] = status.st_size
        return sum(sizes.values())


def _newest(folder: Path) -> int:
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1
