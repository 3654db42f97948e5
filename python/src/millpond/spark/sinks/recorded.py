"""Reads what the driver wrote down about a query's sink when the query started.

    millpond/sink.json    {"sink": "file", "path", "compact_interval", "run_id"}, or
                          {"sink": <class of the sink>, "run_id"}

The driver writes it at every start, before the first task. A run whose session has no extension
adds `"extension": false`. The index of a savepoint has the same.
It is only a hint: it may name a path of another machine, or a stranger may have written it into a
savepoint. Commands show it and compare with it. They write to that sink only if it is the query's
own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import NotFoundError
from millpond.format import layout
from millpond.storage import Storage

FILE = "file"


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a query writes to."""

    kind: str  # `file`, or the class of another sink
    path: str | None = None  # of a file sink
    # Of a file sink: the session's spark.sql.streaming.fileSink.log.compactInterval.
    compact_interval: int | None = None

    @property
    def is_file(self) -> bool:
        """Whether the sink keeps a log that must hold every batch number."""
        return self.kind == FILE and self.path is not None

    def to_json(self) -> dict[str, Any]:
        """Return the sink as JSON values; `sink_of` reads them."""
        if not self.is_file:
            return {"sink": self.kind}
        return {"sink": self.kind, "path": self.path, "compact_interval": self.compact_interval}


def sink_of(value: object) -> Sink | None:
    """Return the sink that JSON values describe; None if they describe none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("sink"), str):
        return None
    path, interval = value.get("path"), value.get("compact_interval")
    if not isinstance(path, str):
        return Sink(value["sink"]) if value["sink"] != FILE else None
    good = isinstance(interval, int) and not isinstance(interval, bool) and interval > 0
    return Sink(value["sink"], path, interval if good else None)


def record(sink: Sink) -> bytes:
    """Return the content of `millpond/sink.json` for a Spark checkpoint that no query has used."""
    return json.dumps(sink.to_json(), separators=(",", ":")).encode()


def read_sink(storage: Storage) -> Sink | None:
    """Return the sink that the last start of the query wrote down; None if it wrote none.

    An old version of Millpond writes none.
    """
    try:
        return sink_of(json.loads(storage.read(layout.SINK_KEY)))
    except (NotFoundError, ValueError):
        return None  # the driver is writing the file; nothing depends on it


def ran_without_extension(storage: Storage) -> bool:
    """Return whether the session of the query's last run had no extension of Millpond's.

    Such a query has no heartbeat from its start to its first batch.
    """
    try:
        value = json.loads(storage.read(layout.SINK_KEY))
    except (NotFoundError, ValueError):
        return False  # the driver is writing the file; nothing depends on it
    return isinstance(value, dict) and value.get("extension") is False
