"""`<local_dir>/uploads.jsonl`: SSTs that are stored already, for a snapshot that is not published
yet.

A snapshot that takes long may be interrupted: its agent is killed, or the storage fails. The next
attempt goes on from here. A cache: losing it costs uploading SSTs again, never more. One line an
SST; one that was cut short is passed over.

What no manifest names may be collected once it is older than the grace period, so an entry counts
for a part of that only, and after the manifest is published everything that it names is looked at
in any case.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress

from millpond.errors import ErrorKind, FormatError, MillpondError
from millpond.json_fields import JsonFields
from millpond.snapshot.local_ssts import FileIdentity
from millpond.sst_ref import SstRef

log = logging.getLogger(__name__)

FILE_NAME = "uploads.jsonl"


class Uploads:
    """Not thread-safe: a store takes one snapshot at a time.

    Args:
        local_dir: of a generation of the store's local files.
        now_ms: time since the epoch.
        longest_ms: entries that are older do not count.
    """

    def __init__(self, local_dir: str, now_ms: int, longest_ms: int) -> None:
        self._path = os.path.join(local_dir, FILE_NAME)
        self._now_ms = now_ms
        self._found: dict[FileIdentity, SstRef] = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return
        except (OSError, ValueError) as e:
            log.warning("cannot read %s, SSTs may be uploaded again: %s", self._path, e)
            return
        for line in filter(None, lines):
            try:
                self._read(line, now_ms - longest_ms)
            except (ValueError, MillpondError) as e:
                log.info("passing over a line of %s: %s", self._path, e)

    def _read(self, line: str, oldest_ms: int) -> None:
        fields = JsonFields(json.loads(line), self._fail)
        identity = fields.array("identity")
        if len(identity) != 4 or not all(type(number) is int for number in identity):
            raise self._fail("identity is no list of four numbers")
        if oldest_ms < fields.integer("uploaded_ms") <= self._now_ms:
            self._found[FileIdentity(*identity)] = SstRef.from_json(fields.child("ref"))

    def _fail(self, message: str) -> MillpondError:
        return FormatError(f"{self._path}: {message}", kind=ErrorKind.FORMAT_DAMAGED)

    def find(self, identity: FileIdentity) -> SstRef | None:
        """Return where the bytes of the local file are stored, None if they are not."""
        ref = self._found.get(identity)
        return ref if ref is not None and ref.size_bytes == identity.size_bytes else None

    def add(self, identity: FileIdentity, ref: SstRef) -> None:
        """The local file is stored now. Never raises: it is only a cache."""
        i = identity
        entry = {
            "identity": [i.device, i.inode, i.mtime_ns, i.size_bytes],
            "uploaded_ms": self._now_ms,
            "ref": ref.to_json(),
        }
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(
                    "\n" + json.dumps(entry, separators=(",", ":")) + "\n"
                )  # the line before may be cut short
        except OSError as e:
            log.info("cannot write %s: %s", self._path, e)

    def clear(self) -> None:
        """Forget all entries."""
        with suppress(OSError):
            os.unlink(self._path)
