"""What several modules about rescales do to a Spark checkpoint."""

from __future__ import annotations

import json
import socket
import zlib
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import MillpondError
from millpond.format import layout
from millpond.format.rescale_journal import Journal, encode_journal
from millpond.operations.rescale import rescale
from tests.checkpoints import CheckpointBuilder, tree


def refused(built: CheckpointBuilder, partitions: int, **options: Any) -> MillpondError:
    """Return the error of a rescale, which has changed nothing."""
    before = tree(built.root)
    with pytest.raises(MillpondError) as caught:
        rescale(built.storage, "it", partitions, **options)
    assert tree(built.root) == before
    assert caught.value.hint
    return caught.value


def interrupt(built: CheckpointBuilder, partitions: int) -> None:
    """Leave what a kill before the last step but one leaves."""
    rescale(built.storage, "it", partitions)
    new = tree(built.root)
    (built.root / "commits/6").unlink()
    keys = tuple(k for k in new if k.endswith("7.manifest") or "pins" in k)
    journal = Journal(
        current=4,
        partitions=partitions,
        batch=6,
        offsets_crc32=zlib.crc32(new["offsets/6"]),
        keys=keys,
        created_ms=1,
    )
    built.storage.put_bytes(layout.RESCALE_JOURNAL_KEY, encode_journal(journal))


def beat(built: CheckpointBuilder, pid: int, host: str = "") -> Path:
    """Leave the heartbeat of a query. By default it runs on this host."""
    file = built.root / "millpond/running/run-1.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    beat = {
        "run_id": "run-1",
        "host": host or socket.gethostname(),
        "pid": pid,
        "interval_ms": 5000,
    }
    file.write_text(json.dumps(beat))
    return file
