"""The journal of a rescale (pure: this module encodes and decodes it).

    millpond/rescale.json    sealed JSON, kind `rescale`

A rescale writes it before anything else, and removes it last. A rescale that was killed leaves it.
Then the next run takes back what that one wrote. Unless it was asked to undo, it starts again.
Source: docs/reference/format.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import ErrorKind
from millpond.format import layout, spark_names
from millpond.format.sealed import seal, unseal
from millpond.model.json_fields import JsonFields

KIND = "rescale"
# Values of `required_features`. They mean, in this order, that the rescale changes
# `millpond/format.json`, that it changes the offset log's entry of a batch that it leaves out, and
# that it writes into the log of a file sink.
_FORMAT, _LEFT_OUT, _SINK = "format", "left_out", "sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a rescale is about to write.

    offsets_crc32: of the new entry of the offset log. It tells that entry from one that Spark wrote
    under the same number.
    keys: of all other new files, relative to the Spark checkpoint.
    format_before: content of `millpond/format.json`, if the rescale changes it.
    left_out_before: content of the offset log's entry of the batch before, if that one is left out.
    sink: the file sink whose log gets entries.
    sink_sums: keys of these entries, relative to the sink -> CRC-32 of each.
    """

    current: int  # partitions before
    partitions: int  # and after
    batch: int  # number of the batch without input that switches over
    offsets_crc32: int
    keys: tuple[str, ...]
    created_ms: int  # since the epoch
    format_before: bytes | None = None
    left_out_before: bytes | None = None
    sink: str | None = None
    sink_sums: Mapping[str, int] = field(default_factory=dict)


def encode_journal(journal: Journal) -> bytes:
    """Return the bytes of the file."""
    features: list[str] = []
    body: dict[str, Any] = {
        "from": journal.current,
        "to": journal.partitions,
        "batch": journal.batch,
        "offsets_crc32": journal.offsets_crc32,
        "keys": list(journal.keys),
        "created_ms": journal.created_ms,
        "required_features": features,
    }
    # A release that does not know one of these must not take the rescale back.
    if journal.format_before is not None:
        body["format_before"] = journal.format_before.decode("ascii")
        features.append(_FORMAT)
    if journal.left_out_before is not None:
        body["left_out_before"] = journal.left_out_before.decode("utf-8")
        features.append(_LEFT_OUT)
    if journal.sink is not None:
        sums = [{"key": key, "crc32": crc32} for key, crc32 in journal.sink_sums.items()]
        body["sink"] = {"path": journal.sink, "entries": sums}
        features.append(_SINK)
    return seal(KIND, body)


def decode_journal(data: bytes) -> Journal:
    """Return the journal whose file holds `data`.

    Raises: FormatError: FORMAT_DAMAGED, UNSAFE_PATH. UnsupportedError.
    """
    known = [_FORMAT, _LEFT_OUT, _SINK]
    fields = unseal(
        KIND,
        data,
        name=layout.RESCALE_JOURNAL_KEY,
        damaged=ErrorKind.FORMAT_DAMAGED,
        features=known,
    )
    batch = fields.integer("batch", 0)
    sink = fields.child("sink") if fields.has("sink") else None
    entries = sink.children("entries") if sink is not None else []
    return Journal(
        current=fields.integer("from", 1),
        partitions=fields.integer("to", 1),
        batch=batch,
        offsets_crc32=fields.integer("offsets_crc32", 0, 0xFFFF_FFFF),
        keys=tuple(layout.check_relative(key) for key in fields.strings("keys")),
        created_ms=fields.integer("created_ms"),
        format_before=_bytes(fields, "format_before", "ascii"),
        left_out_before=_bytes(fields, "left_out_before", "utf-8"),
        sink=sink.string("path") if sink is not None else None,
        # The sink may be anywhere. Whoever takes the rescale back deletes these there, so a forged
        # journal must name nothing but entries of a log.
        sink_sums={
            spark_names.check_sink_entry_key(entry.string("key"), batch): entry.integer(
                "crc32", 0, 0xFFFF_FFFF
            )
            for entry in entries
        },
    )


def _bytes(fields: JsonFields, name: str, encoding: str) -> bytes | None:
    """Return a content that the journal has as text; None if it has none."""
    if not fields.has(name):
        return None
    try:
        return fields.string(name).encode(encoding)
    except UnicodeEncodeError as e:
        raise fields.fail(f"field {name} is no text in {encoding}") from e
