"""What the two forms of the API have in common: rows, and pandas frames."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from millpond.transport.session import Session

# A record batch of results has at most so many entries and, about, so many bytes.
_MOST, _BYTES = 10_000, 1 << 22


@dataclass(frozen=True, slots=True)
class Offsets:
    """Which columns are the key's, and which ones users see. A column may be both."""

    keys: list[int]
    values: list[int]

    @classmethod
    def of(cls, flat: list[int]) -> Offsets:
        """Return the offsets from Spark's form: a length, the number of keys, keys, values."""
        keys = flat[1]
        return cls(flat[2 : 2 + keys], flat[2 + keys : 1 + flat[0]])


# They can be closed: to user code that keeps them, the rows of a key that is done with are over.
KeyRows = Generator[Any, None, None]


class Keys(Protocol):
    """Keys and rows of one frame after the other."""

    def load(self, batch: pa.RecordBatch) -> None:
        """Take over the rows of a frame."""

    def key(self, at: int) -> tuple[Any, ...]:
        """Return the key of a row as users see it."""

    def rows(self, begin: int, end: int) -> KeyRows:
        """Return the rows from `begin` to before `end` as users see them."""

    def joined(self, rows: KeyRows) -> KeyRows:
        """Return the rows of a key that lay in several frames as if they had come in one."""


class Form(Protocol):
    """One form of the API."""

    schema: pa.Schema  # of the results

    def keys(self, schema: pa.Schema, offsets: Offsets) -> Keys:
        """Return the reader of rows with these columns."""

    def add(self, results: Iterator[Any], session: Session) -> None:
        """Take over results of a key, and send them in parts if they are many."""

    def key_done(self) -> None:
        """Say that the next results belong to another key."""

    def take(self) -> bytes:
        """Return the results as an Arrow record batch, or nothing, and forget them."""


class Pending:
    """Results that are not sent yet; with `most` of them, they are to be sent.

    The user's code goes on before they are sent, and may change what it yielded: so a form keeps
    nothing here that such a change would reach.
    """

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.ends: list[int] = []  # of each key
        self.most = 100
        self.bytes = 0  # about, of what is pending

    @property
    def is_full(self) -> bool:
        """Whether they are to be sent. Those that were sent may have been smaller."""
        return len(self.entries) >= self.most or self.bytes >= _BYTES

    def add(self, results: Iterator[Any], session: Session, size: Callable[[Any], int]) -> None:
        """Take over `results`. At the limit, send what is there.

        Asking for the next one may send, too: where the user's code reads on into another frame.
        """
        entries = self.entries
        for one in results:
            entries.append(one)
            self.bytes += size(one)
            if self.is_full:
                session.flush(with_rows=True)

    def end_key(self) -> None:
        """Say that the next results belong to another key."""
        self.ends.append(len(self.entries))

    def by_key(self) -> Iterator[list[Any]]:
        """Yield the results of each key that has some."""
        begin = 0
        for end in (*self.ends, len(self.entries)):
            if end > begin:
                yield self.entries[begin:end]
            begin = end

    def sent(self, size: int) -> None:
        """Forget all. They had `size` bytes, so the next ones may be more, or fewer."""
        if self.entries:  # or else it says nothing of their size
            self.most = max(1, min(_MOST, _BYTES * len(self.entries) // max(1, size)))
        self.entries.clear()
        self.ends.clear()
        self.bytes = 0


def whole(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one record batch. Raises: ValueError: Arrow splits them: a
    column has more than 2 GiB of text or bytes.
    """
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(
            f"the results of a function have {table.nbytes >> 20} MiB at once: a column may have"
            " 2 GiB of text or bytes; let the function yield fewer or smaller rows"
        )
    return batches[0]
