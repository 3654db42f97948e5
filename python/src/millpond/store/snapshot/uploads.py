"""`<local_dir>/uploads.jsonl`: SSTs that are stored for a snapshot that is not published yet.

A long snapshot may be interrupted: its agent is killed, or the storage fails. The next attempt goes
on from here. This is a cache: losing it costs uploading SSTs again, never more. Each line is one
SST; a line that was cut short is passed over.

An SST that no manifest names may be collected once it is older than the grace period. So an entry
counts only for a part of that period. After the manifest is published, every SST that it names is
looked at in any case.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress

from millpond.errors import ErrorKind, FormatError, MillpondError
from millpond.format.sst_ref import SstRef
from millpond.model.json_fields import JsonFields
from millpond.store.local_ssts import FileIdentity

log = logging.getLogger(__name__)

FILE_NAME = "uploads.jsonl"


class Uploads:
    """The SSTs that earlier attempts of a snapshot have uploaded.

    Not thread-safe: a store takes one snapshot at a time.

    Args:
        local_dir: of one generation of the store's local files.
        now_ms: since the epoch.
        longest_ms: older entries do not count.
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
            log.warning("cannot read %s: SSTs may be uploaded again: %s", self._path, e)
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
        """Return the stored SST with the bytes of this local file; None if there is none."""
        ref = self._found.get(identity)
        return ref if ref is not None and ref.size_bytes == identity.size_bytes else None

    def add(self, identity: FileIdentity, ref: SstRef) -> None:
        """Note that the local file is stored now. Never raises: this is only a cache."""
        i = identity
        entry = {
            "identity": [i.device, i.inode, i.mtime_ns, i.size_bytes],
            "uploaded_ms": self._now_ms,
            "ref": ref.to_json(),
        }
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                # The newline in front ends a line that was cut short.
                file.write("\n" + json.dumps(entry, separators=(",", ":")) + "\n")
        except OSError as e:
            log.info("cannot write %s: %s", self._path, e)

    def clear(self) -> None:
        """Forget all entries."""
        with suppress(OSError):
            os.unlink(self._path)
