#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures time and memory to export, verify and restore a large state, without Spark.

    .venv/bin/python benchmarks/bench_savepoint_memory.py --rows 10000000

Memory is the peak of the sum over all processes. Each process counts the pages that it shares. The
state is made up: keys and values of one long, in two partitions, once as SSTs, once as changelogs.
With `--rows 2048 --value-bytes 1048576` values are random bytes, and the benchmark measures edits
too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import rocksdict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import bench_env
from millpond import savepoint
from millpond.format import layout
from millpond.format.changelog import ChangelogWriter
from millpond.model.ids import StoreId, VersionId
from millpond.model.key_groups import KeyGroups
from millpond.rows.chunks import table_batches
from millpond.rows.encode import encode_rows
from millpond.rows.hashing import hash_rows
from millpond.spark.types import Atom, Field, Struct
from tests.checkpoints import CheckpointBuilder, upload, utf, version_id

_KEY, _VALUE = Struct((Field("k", Atom("long")),)), Struct((Field("count", Atom("long")),))
_BYTES = Struct((Field("v", Atom("binary")),))
_GROUPS = 256
_FILE_ROWS = 2_000_000
_DISTINCT = 64  # values of random bytes
_POLL_S = 0.1


class _Builder(CheckpointBuilder):
    """A Spark checkpoint of one micro-batch of `rows` rows."""

    rows = 0
    value_bytes = 0  # 0: a long

    def schema(self) -> bytes:
        fields = (("k", "long"), ("v", "binary") if self.value_bytes else ("count", "long"))
        texts = [
            f'{{"type":"struct","fields":[{{"name":"{name}","type":"{kind}"}}]}}'
            for name, kind in fields
        ]
        return utf("v2") + b"".join((1).to_bytes(4, "big") + utf(text) for text in texts)

    def _values(self, numbers: Any) -> list[bytes]:
        if not self.value_bytes:
            return list(
                encode_rows(
                    pa.StructArray.from_arrays([numbers], names=["count"]), _VALUE
                ).to_pylist()
            )
        some = pa.array(
            [np.random.default_rng(n).bytes(self.value_bytes) for n in range(_DISTINCT)]
        )
        made = encode_rows(pa.StructArray.from_arrays([some], names=["v"]), _BYTES).to_pylist()
        return [made[number % _DISTINCT] for number in range(len(numbers))]

    def keys(self, version: int) -> int:
        return self.rows // self.partitions

    def fill(self, *, changelog: bool) -> None:
        """Write the state: changelogs, or snapshots."""
        self.spark_logs(1)
        numbers = pa.array(np.arange(self.rows))
        keys = pa.StructArray.from_arrays([numbers], names=["k"])
        groups = np.mod(hash_rows(keys, _KEY).astype(np.int64), _GROUPS)
        slots = np.array([self.groups.slot(group) for group in range(_GROUPS)])[groups]
        values = self._values(numbers)
        rows = encode_rows(keys, _KEY).to_pylist()
        for store in self.stores():
            mine = np.nonzero(groups % self.partitions == store.partition)[0]
            prefixes = {
                slot: int(slot).to_bytes(2, "big") + b"\0\0\0" for slot in set(slots[mine].tolist())
            }
            whole = (
                {id(value): b"\0" + value for value in values[:_DISTINCT]}
                if self.value_bytes
                else {}
            )
            entries = [
                (prefixes[slots[n]] + rows[n], whole.get(id(values[n])) or b"\0" + values[n])
                for n in mine.tolist()
            ]
            entries.sort()
            (self._changelog if changelog else self._snapshot)(store, entries)

    def _changelog(self, store: StoreId, entries: list[tuple[bytes, bytes]]) -> None:
        path = self.root / layout.changelog_key(
            store, VersionId(1, version_id(store, 1)), self.spark_format
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            writer = ChangelogWriter(file, replace(self.header(store, 1), keys=len(entries)))
            writer.put_all(entries)
            writer.finish()

    def _snapshot(self, store: StoreId, entries: list[tuple[bytes, bytes]]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            options = rocksdict.Options(raw_mode=True)
            options.set_disable_auto_compactions(True)
            db = rocksdict.Rdict(f"{directory}/db", options)
            for start in range(0, len(entries), _FILE_ROWS):
                writer = rocksdict.SstFileWriter(options=options)
                writer.open(f"{directory}/{start}.sst")
                for key, value in entries[start : start + _FILE_ROWS]:
                    writer[key] = value
                writer.finish()
                db.ingest_external_file([f"{directory}/{start}.sst"])
            checkpoint = Path(directory) / "checkpoint"
            rocksdict.Checkpoint(db).create_checkpoint(str(checkpoint))
            live = {str(file["name"]).lstrip("/"): file for file in db.live_files()}
            ssts = {
                path.name: upload(self.storage, store, path, live[path.name])
                for path in sorted(checkpoint.glob("*.sst"))
            }
            self.publish(self._manifest(store, 1, checkpoint, ssts, []))
            db.close()


def _resident_bytes() -> int:
    """Return the resident bytes of this process and all its descendants."""
    children: dict[int, list[int]] = {}
    resident: dict[int, int] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the process has just ended
            children.setdefault(int(fields[1]), []).append(int(directory.name))
            resident[int(directory.name)] = int(fields[21]) * 4096
    total, todo = 0, [int(Path("/proc/self").resolve().name)]
    while todo:
        process = todo.pop()
        total += resident.get(process, 0)
        todo += children.get(process, [])
    return total


def _measured(action: Callable[[], Any]) -> dict[str, float]:
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(_POLL_S):
            peak = max(peak, _resident_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    begin = time.monotonic()
    try:
        action()
    finally:
        seconds = time.monotonic() - begin
        over.set()
        thread.join()
    return {"seconds": round(seconds, 2), "peak_mib": round(peak / 2**20)}


def _child(what: str, directory: Path) -> None:
    """Do `what` in this process, and print time and memory."""
    tables = directory / "tables"
    actions: dict[str, Callable[[], Any]] = {
        "export": lambda: savepoint.create(directory / "job", tables, format="canonical"),
        "verify": lambda: savepoint.verify(tables),
        "restore": lambda: savepoint.restore(tables, directory / "restored"),
        "restore_3": lambda: savepoint.restore(tables, directory / "restored-3", partitions=3),
        "edit": lambda: savepoint.edit(tables, directory / "edited", function=lambda rows: rows),
        "edit_table": lambda: savepoint.edit(
            tables,
            directory / "edited-table",
            table=table_batches(str(tables / "tables"), ("key", "value")),
        ),
    }
    print(json.dumps(_measured(actions[what])))


def main() -> int:
    """Return 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--value-bytes", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/savepoint-memory-...)"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _child(given.child[0], Path(given.child[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as work_dir:
        results: dict[str, Any] = {
            **bench_env.describe_host(Path(work_dir)),
            "quick": False,
            "rows": given.rows,
        }
        steps = ["export", "verify", "restore", "restore_3"]
        if given.value_bytes:
            results["value_bytes"] = given.value_bytes
            steps += ["edit", "edit_table"]
        for form in ("snapshots", "changelogs"):
            directory = Path(work_dir) / form
            directory.mkdir()
            command = [sys.executable, __file__, "--child"]
            builder = _Builder(directory / "job", groups=KeyGroups(_GROUPS, 2))
            builder.rows, builder.value_bytes = given.rows, given.value_bytes
            builder.fill(changelog=form == "changelogs")
            results[form] = {}
            for what in steps:
                told = subprocess.run(
                    [*command, what, str(directory)], check=True, stdout=subprocess.PIPE, text=True
                ).stdout
                results[form][what] = json.loads(told)
                print(f"{form}, {what}: {told.strip()}", flush=True)
                for made in {path.name for path in directory.iterdir()} - {"job", "tables"}:
                    shutil.rmtree(directory / made)
            shutil.rmtree(directory)
    out = given.out or bench_env.results_path(results, prefix="savepoint-memory-")
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"results: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
