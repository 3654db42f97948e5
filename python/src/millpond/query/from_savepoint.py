"""Read the image that a savepoint holds, and check the files that are read."""

from __future__ import annotations

import zlib
from dataclasses import replace

from millpond.errors import ErrorKind, NotFoundError, UnsupportedError
from millpond.format import layout, table_names
from millpond.query.complete import check_complete
from millpond.query.image import Image, StoredFile
from millpond.query.index import CANONICAL, NATIVE, SavepointIndex, check_listed, damaged
from millpond.storage import Storage


def savepoint_image(storage: Storage, index: SavepointIndex) -> Image:
    """Return the image of the savepoint in `storage`. That of a canonical savepoint has no files of
    state.

    Does not compare the checksums of changelogs and SSTs: whoever reads them whole does.

    Args:
        index: of the savepoint.
    Raises:
        FormatError: SAVEPOINT_DAMAGED: a file is missing, or has another size or checksum.
        UnsupportedError: FORMAT_TOO_NEW.
    """
    if index.format not in (NATIVE, CANONICAL):
        raise UnsupportedError(
            f"a savepoint of the unknown format {index.format!r}", kind=ErrorKind.FORMAT_TOO_NEW
        )
    for _, e in check_listed(storage, index):
        raise e
    texts: dict[str, bytes] = {}
    files: list[StoredFile] = []
    for key, entry in sorted(index.files.items()):
        if table_names.is_table(key):
            continue  # a table; whoever writes its rows anew reads it
        if is_bulk(key):
            files.append(
                StoredFile(key=key, source=key, size_bytes=entry.size_bytes, crc32=entry.crc32)
            )
            continue
        try:
            text = storage.read(key)
        except NotFoundError as e:
            raise damaged(f"{key} is not there") from e
        if zlib.crc32(text) != entry.crc32:
            raise damaged(f"{key}: its check sum does not match")
        texts[key] = text
    image = replace(index.image, texts=texts, files=tuple(files))
    check_complete(image, index)
    return image


def is_bulk(key: str) -> bool:
    """Whether `key` is a changelog or an SST. They may be large, and no restore changes them."""
    return isinstance(layout.file_of(key), layout.ChangelogFile | layout.SstFile)
