"""Check the changelogs and SSTs that an image names without reading them whole: none is missing,
none is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millpond.errors import ErrorKind, NotFoundError, error
from millpond.format import layout
from millpond.query.image import StoredFile
from millpond.query.planned_stores import each
from millpond.storage import Storage
from millpond.storage.split import side_of
from millpond.store.files import check_end


def check_files(
    storage: Storage,
    files: Iterable[StoredFile],
    sizes: Mapping[str, int],
    ended: Collection[str] = (),
) -> None:
    """Check that every file is there with its size, and that every changelog has its end.

    Finds no flipped bit: `verify` does.

    Args:
        sizes: key -> bytes, of files that were listed; the storage is asked for the others.
        ended: keys of changelogs that are known to have their end.
    Raises:
        NotFoundError: CHANGELOG_MISSING, SST_MISSING.
        FormatError: CHANGELOG_DAMAGED, SST_DAMAGED.
        UnavailableError: the storage does not answer.
    """
    named = list(files)

    def check(file: StoredFile) -> None:
        _check(storage, file, sizes.get(file.source), file.source in ended)

    if named:
        first = named[0].source
        each(check, named, local=side_of(storage, first).local_path(first) is not None)


def _check(storage: Storage, file: StoredFile, listed_bytes: int | None, ended: bool) -> None:
    key = file.source
    is_changelog = isinstance(layout.file_of(key), layout.ChangelogFile)
    try:
        size_bytes = storage.stat(key).size_bytes if listed_bytes is None else listed_bytes
        if size_bytes != file.size_bytes:
            kind = ErrorKind.CHANGELOG_DAMAGED if is_changelog else ErrorKind.SST_DAMAGED
            raise error(kind, f"{key} has {size_bytes} bytes, expected {file.size_bytes}")
        if is_changelog and not ended:
            check_end(storage, key, size_bytes)
    except NotFoundError as e:
        kind = ErrorKind.CHANGELOG_MISSING if is_changelog else ErrorKind.SST_MISSING
        raise error(kind, f"{key} is not there, and the state needs it") from e
