"""Where a restore or a fork reads from."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.query.image import Image
from millpond.query.index import CANONICAL, SavepointIndex
from millpond.query.row_source import RowSource
from millpond.state.savepoint_rows import open_rows
from millpond.storage import open_checkpoint, open_storage


@dataclass(frozen=True, slots=True)
class Origin:
    """A savepoint, or the Spark checkpoint of a query.

    index: of the savepoint; None: it is a Spark checkpoint.
    """

    root: str
    image: Image
    index: SavepointIndex | None = None

    @property
    def canonical(self) -> bool:
        return self.index is not None and self.index.format == CANONICAL

    def rows(self) -> RowSource:
        """Open the storage, and return the rows of the state."""
        # A savepoint keeps its state in itself.
        open_it = open_checkpoint if self.index is None else open_storage
        return open_rows(open_it(self.root), self.image, self.index)

    @property
    def state_bytes(self) -> int:
        if self.index is not None:
            return self.index.size_bytes
        return sum(file.size_bytes for file in self.image.files)
