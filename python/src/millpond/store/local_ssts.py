"""`<local_dir>/ssts.json`: maps each file of the local RocksDB to the stored SST with its bytes.

This is a cache: losing it costs uploading SSTs again, never more. Local names prove nothing,
because each generation of the local RocksDB numbers its files anew. So an entry is found by the
identity of the very file it was made for (inode, time, size). A RocksDB checkpoint hard-links
files, so they keep their identity. Entries of several generations live side by side.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millpond.errors import ErrorKind, FormatError, MillpondError
from millpond.format.manifest import SstRef
from millpond.model.json_fields import JsonFields
from millpond.storage.local import translate_restored

log = logging.getLogger(__name__)

FILE_NAME = "ssts.json"


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What makes a local file the same file under another name."""

    device: int
    inode: int
    mtime_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LocalSst:
    """A local SST whose bytes are stored."""

    ref: SstRef
    identity: FileIdentity
    manifest: str  # name of a manifest that named `ref` when this was written


def identify(path: str) -> FileIdentity:
    """Return the identity of the file at `path`. Raises: OSError."""
    info = os.stat(path)
    return FileIdentity(info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)


def load(local_dir: str) -> dict[FileIdentity, LocalSst]:
    """Return the entries; none if the file is absent or unreadable."""
    path = os.path.join(local_dir, FILE_NAME)
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        log.warning("cannot read %s: every SST will be uploaded again: %s", path, e)
        return {}

    def fail(message: str) -> MillpondError:
        return FormatError(f"{path}: {message}", kind=ErrorKind.FORMAT_DAMAGED)

    try:
        entries = [
            _parse(JsonFields(entry, fail)) for entry in JsonFields(value, fail).array("ssts")
        ]
        return {entry.identity: entry for entry in entries}
    except MillpondError as e:
        log.warning("cannot use %s: every SST will be uploaded again: %s", path, e)
        return {}


def save(local_dir: str, ssts: Iterable[LocalSst]) -> None:
    """Replace the file. Raises: UnavailableError: LOCAL_DISK_FULL, LOCAL_FILES_LOST."""
    path = os.path.join(local_dir, FILE_NAME)
    temporary = path + ".new"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"ssts": [_to_json(sst) for sst in ssts]}, file, separators=(",", ":"))
        os.replace(temporary, path)
    except OSError as e:
        raise translate_restored(e, f"writing {path}") from e


def _to_json(sst: LocalSst) -> dict[str, Any]:
    i = sst.identity
    return {
        "ref": sst.ref.to_json(),
        "identity": [i.device, i.inode, i.mtime_ns, i.size_bytes],
        "manifest": sst.manifest,
    }


def _parse(fields: JsonFields) -> LocalSst:
    identity = fields.array("identity")
    if len(identity) != 4 or not all(type(number) is int for number in identity):
        raise fields.fail("identity is no list of four numbers")
    return LocalSst(
        SstRef.from_json(fields.child("ref")), FileIdentity(*identity), fields.string("manifest")
    )
