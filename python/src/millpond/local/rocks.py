"""Reads local RocksDB databases. The only module that imports rocksdict."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from millpond.errors import ErrorKind, FormatError, UnsupportedError


def _rocksdict() -> Any:
    try:
        import rocksdict  # here and not above: an executor's agent never needs it
    except ImportError as e:
        raise UnsupportedError(
            "reading SSTs needs the package rocksdict, which is not installed",
            kind=ErrorKind.UNSUPPORTED,
            hint="Run `python -m pip install rocksdict` in the environment of this command.",
        ) from e
    return rocksdict


def scan(directory: str, *, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield all live entries (physical key, value) of the database in `directory`, ordered by key.

    Opens it read-only, without the write-ahead log. RocksDB checks every block that it reads.

    Args:
        name: the manifest from which the database was laid out, for messages.
    Raises:
        FormatError: SST_DAMAGED: RocksDB cannot read it.
        UnsupportedError: rocksdict is not installed.
    """
    rocksdict = _rocksdict()
    try:
        db = rocksdict.Rdict(
            directory,
            rocksdict.Options(raw_mode=True),
            access_type=rocksdict.AccessType.read_only(),
        )
    except Exception as e:  # rocksdict knows no narrower class
        raise FormatError(f"{name}: RocksDB cannot open it: {e}", kind=ErrorKind.SST_DAMAGED) from e
    try:
        # `items` takes one call a row, an iterator takes four. But `items` takes a damaged block
        # for the end. So an iterator then checks by `status()` that this was the end.
        key = None
        for key, value in db.items():
            yield key, value
        iterator = db.iter()
        if key is None:
            iterator.seek_to_first()
        else:
            iterator.seek(key)
            if iterator.valid():
                iterator.next()
        if iterator.valid():
            raise FormatError(
                f"{name}: RocksDB ended before the last key", kind=ErrorKind.SST_DAMAGED
            )
        try:
            iterator.status()
        except Exception as e:
            raise FormatError(
                f"{name}: RocksDB cannot read it: {e}", kind=ErrorKind.SST_DAMAGED
            ) from e
        del iterator
    finally:
        db.close()


class Reader:
    """Reads single entries of the database in `directory`, read-only. RocksDB checks each block.

    Args, Raises: as `scan`.
    """

    def __init__(self, directory: str, *, name: str) -> None:
        rocksdict = _rocksdict()
        self._name = name
        try:
            self._db = rocksdict.Rdict(
                directory,
                rocksdict.Options(raw_mode=True),
                access_type=rocksdict.AccessType.read_only(),
            )
        except Exception as e:  # rocksdict knows no narrower class
            raise self._damaged("open", e) from e

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a physical key. Raises: FormatError: SST_DAMAGED."""
        try:
            found: bytes | None = self._db.get(key)
        except Exception as e:
            raise self._damaged("read", e) from e
        return found

    def starting_with(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries whose keys start with `prefix`, ordered by key.

        Raises: FormatError: SST_DAMAGED.
        """
        return takewhile(lambda entry: entry[0].startswith(prefix), self.starting_at(prefix))

    def starting_at(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with this key and larger ones, ordered by key.

        Raises: FormatError: SST_DAMAGED.
        """
        iterator = self._db.iter()
        iterator.seek(key)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        try:
            iterator.status()
        except Exception as e:
            raise self._damaged("read", e) from e

    def close(self) -> None:
        """Give the files back."""
        self._db.close()

    def _damaged(self, verb: str, e: Exception) -> FormatError:
        return FormatError(
            f"{self._name}: RocksDB cannot {verb} it: {e}", kind=ErrorKind.SST_DAMAGED
        )
