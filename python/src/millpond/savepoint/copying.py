"""Write an image: small files as they are in it, changelogs and SSTs linked or copied, every one checked."""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from millpond import layout
from millpond.checksums import file_crc32
from millpond.errors import (
    ErrorKind,
    FormatError,
    InternalError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
)
from millpond.savepoint.image import Image, StoredFile
from millpond.savepoint.index import FileEntry
from millpond.savepoint.parts import is_part
from millpond.savepoint.target import Target
from millpond.scratch import scratch_directory
from millpond.storage import Storage
from millpond.storage.local import translate
from millpond.storage.split import side_of

Progress = Callable[[int, int], None]
"""Called now and then with how much is done and how much there is in all: bytes that are copied, stores that are read or written."""

_COPIES = 16  # at once, where each is a wait for object storage
# What makes Spark take a directory for the checkpoint of a query comes last.
_LAST = (layout.COMMITS_DIR, layout.OFFSETS_DIR, layout.QUERY_METADATA_KEY)


@dataclass(slots=True)
class Written:
    """What was written, and how much of it shares blocks with what was read."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    bytes_written: int = 0
    bytes_copied: int = 0  # by the storage that keeps both: they came by no other machine
    bytes_linked: int = 0


def write_image(
    image: Image,
    source: Storage,
    target: Target,
    *,
    link: bool,
    verify: bool,
    damaged: Callable[[str], MillpondError],
    progress: Progress | None = None,
) -> Written:
    """Write everything that `image` names.

    Args:
        link: share blocks with the source's files where storage can (they are never changed in place).
        verify: check the sums of shared files too; copies are always checked.
        damaged: makes the error for a file that is not what the image says.
    Raises: NotFoundError: a file of the source is gone. UnavailableError. What `damaged` makes. InternalError: the image has a file
        that is no part of one.
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
                target.durable.add(done.entry.key)
            elif done.how == "copied":
                written.bytes_copied += done.entry.size_bytes
            else:
                written.bytes_written += done.entry.size_bytes
            if progress is not None:
                progress(written.bytes_written + written.bytes_copied + written.bytes_linked, total)
    for key in _in_order(image.texts):
        text = image.texts[key]
        target.storage.put_bytes(key, text, if_absent=True)
        written.files[key] = FileEntry(key=key, size_bytes=len(text), crc32=zlib.crc32(text))
        written.bytes_written += len(text)
    if progress is not None:
        progress(total, total)
    return written


def _in_order(keys: Iterable[str]) -> list[str]:
    def place(key: str) -> tuple[int, str]:
        first = key.partition("/")[0]
        return (_LAST.index(first) + 1 if first in _LAST else 0, key)

    return sorted(keys, key=place)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file that was taken over. how: `linked`; `copied`, where it is kept; `written`, by this machine."""

    entry: FileEntry
    how: str


def _all(
    copy: Callable[[StoredFile], _Copy], files: Sequence[StoredFile], source: Storage
) -> Iterator[_Copy]:
    """Copy files: one after the other where they are at hand, several at once where each is a wait."""
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
    target: Target,
    link: bool,
    verify: bool,
    damaged: Callable[[str], MillpondError],
    temporary: str,
) -> _Copy:
    origin = source.local_path(file.source)
    if origin is None:
        copied = target.storage.copy_from(side_of(source, file.source), file.source, file.key)
        if copied is not None:
            _check(file, copied.size_bytes, copied.crc32, damaged)
            return _Copy(
                FileEntry(key=file.key, size_bytes=copied.size_bytes, crc32=copied.crc32), "copied"
            )
        path = os.path.join(temporary, uuid.uuid4().hex)
        source.get_to_file(file.source, path)
    else:
        source.stat(file.source)  # maps what may be wrong with it to Millpond's errors
        path = origin
    try:
        target.storage.put_file(file.key, path, if_absent=True, link=link or origin is None)
    except InvalidInputError as e:
        raise NotFoundError(
            f"{file.source} was deleted meanwhile", kind=ErrorKind.OBJECT_NOT_FOUND
        ) from e
    final = target.storage.local_path(file.key)
    try:
        linked = origin is not None and final is not None and os.path.samefile(origin, final)
        readable = final if final is not None else path
        size_bytes = os.path.getsize(readable)
        known = None if verify or not linked else file.crc32
        crc32 = file_crc32(readable) if known is None else known
        _check(file, size_bytes, crc32, damaged)
        if origin is None:
            os.unlink(path)
    except OSError as e:
        raise translate(e, f"reading {file.source}") from e
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
    """Return the error for a file of a Spark checkpoint that is not what its manifest says."""
    return FormatError(message, kind=ErrorKind.SST_DAMAGED)
