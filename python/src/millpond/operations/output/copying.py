"""Writes an image: puts its small files, links or copies its changelogs and SSTs, and checks
each.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from millpond.errors import (
    ErrorKind,
    FormatError,
    InternalError,
    InvalidInputError,
    MillpondError,
    error,
)
from millpond.format import layout, spark_names
from millpond.format.checksums import file_crc32
from millpond.local.scratch import scratch_directory
from millpond.operations.output.atomic_target import AtomicTarget
from millpond.query.image import Image, StoredFile
from millpond.query.index import FileEntry
from millpond.query.parts import is_part
from millpond.storage import Storage
from millpond.storage.split import side_of
from millpond.storage.stored_file import stored_path

Progress = Callable[[int, int], None]
"""Called now and then with how much is done, and how much there is in all.

The unit is bytes that are copied, or stores that are read or written.
"""

_COPIES = 16  # at once, if each waits for object storage
# By these Spark knows the checkpoint of a query: they come last.
_LAST = (spark_names.COMMITS_DIR, spark_names.OFFSETS_DIR, spark_names.QUERY_METADATA_KEY)


@dataclass(slots=True)
class Written:
    """What was written, and how much of it shares blocks with the source."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    bytes_written: int = 0
    bytes_copied: int = 0  # by the storage itself, from one key to another
    bytes_linked: int = 0


def write_image(
    image: Image,
    source: Storage,
    target: AtomicTarget,
    *,
    link: bool,
    verify: bool,
    damaged: Callable[[str], MillpondError],
    progress: Progress | None = None,
    before_texts: Callable[[], object] | None = None,
) -> Written:
    """Write everything that `image` names.

    Args:
        link: share blocks with the source's files if the storage can. Nobody changes these files in
            place.
        verify: check the sums of shared files too. Copies are always checked.
        damaged: makes the error for a file that differs from what the image says.
        before_texts: called when all large files are there. What is left takes a moment.
    Raises: NotFoundError: a file of the source is gone. UnavailableError. What `damaged` makes.
        InternalError: the image names a file that is no part of an image.
    """
    for key in (*image.texts, *(file.key for file in image.files)):
        ours = (
            layout.parse_rescale_pin(key) is not None
            or layout.parse_operator_record(key) is not None
        )
        if not ours and not is_part(key, image.batch):
            raise InternalError(f"{key!r} is no part of what is to be written")
    written = Written()
    total = image.size_bytes
    with scratch_directory("savepoint") as temporary:

        def copy(file: StoredFile) -> _Copy:
            return _copy(file, source, target, link, verify, damaged, temporary)

        for done in _all(copy, image.files, source):
            written.files[done.entry.key] = done.entry
            if done.how == "linked":
                written.bytes_linked += done.entry.size_bytes
            elif done.how == "copied":
                written.bytes_copied += done.entry.size_bytes
            else:
                written.bytes_written += done.entry.size_bytes
            if progress is not None:
                progress(written.bytes_written + written.bytes_copied + written.bytes_linked, total)
    if before_texts is not None:
        before_texts()
    for key in _in_order(image.texts):
        text = image.texts[key]
        target.storage.put_bytes(key, text, if_absent=True)
        written.files[key] = FileEntry(key=key, size_bytes=len(text), crc32=zlib.crc32(text))
        written.bytes_written += len(text)
    if progress is not None:
        progress(total, total)
    return written


def _in_order(keys: Iterable[str]) -> list[str]:
    def rank(key: str) -> tuple[int, str]:
        first = key.partition("/")[0]
        return (_LAST.index(first) + 1 if first in _LAST else 0, key)

    return sorted(keys, key=rank)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file of the target."""

    entry: FileEntry
    how: str  # `linked`; `copied`: by the storage itself; `written`: by this machine


def _all(
    copy: Callable[[StoredFile], _Copy], files: Sequence[StoredFile], source: Storage
) -> Iterator[_Copy]:
    """Copy files: one after the other from a local disk, several at once from object storage."""
    if not files or side_of(source, files[0].source).local_path(files[0].source) is not None:
        yield from map(copy, files)
        return
    with ThreadPoolExecutor(_COPIES) as pool:
        try:
            yield from pool.map(copy, files)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _copy(
    file: StoredFile,
    source: Storage,
    target: AtomicTarget,
    link: bool,
    verify: bool,
    damaged: Callable[[str], MillpondError],
    temporary: str,
) -> _Copy:
    if source.local_path(file.source) is None:
        copied = target.storage.copy_from(side_of(source, file.source), file.source, file.key)
        if copied is not None:
            _check(file, copied.size_bytes, copied.crc32, damaged)
            return _Copy(
                FileEntry(key=file.key, size_bytes=copied.size_bytes, crc32=copied.crc32), "copied"
            )
    copy = os.path.join(temporary, uuid.uuid4().hex)
    with stored_path(source, file.source, copy) as path:
        is_copy = path == copy
        try:
            target.storage.put_file(file.key, path, if_absent=True, link=link or is_copy)
        except InvalidInputError as e:
            gone = ErrorKind.LOCAL_FILES_LOST if is_copy else ErrorKind.OBJECT_NOT_FOUND
            raise error(gone, f"{path if is_copy else file.source} was deleted meanwhile") from e
        final = target.storage.local_path(file.key)
        linked = not is_copy and final is not None and os.path.samefile(path, final)
        readable = final if final is not None else path
        size_bytes = os.path.getsize(readable)
        known = None if verify or not linked else file.crc32
        crc32 = file_crc32(readable) if known is None else known
        _check(file, size_bytes, crc32, damaged)
        if is_copy:
            os.unlink(path)
    return _Copy(
        FileEntry(key=file.key, size_bytes=size_bytes, crc32=crc32),
        "linked" if linked else "written",
    )


def _check(
    file: StoredFile, size_bytes: int, crc32: int, damaged: Callable[[str], MillpondError]
) -> None:
    if size_bytes != file.size_bytes:
        raise damaged(f"{file.source} has {size_bytes} bytes, expected {file.size_bytes}")
    if file.crc32 is not None and crc32 != file.crc32:
        raise damaged(f"{file.source}: its check sum does not match")


def damaged_state(message: str) -> FormatError:
    """Return the error for a file of a Spark checkpoint that its manifest describes otherwise."""
    return FormatError(message, kind=ErrorKind.SST_DAMAGED)
