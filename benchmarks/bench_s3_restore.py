# SPDX-License-Identifier: Apache-2.0
"""Restores over S3: how fast an agent fetches snapshots, against plain GETs of the same objects.

`bench_s3.py` runs each step in a process of its own: `python -m benchmarks.bench_s3_restore
(store|restore|raw|files) <spec.json> <result.json>`.

- `store` makes the snapshots, as an executor does. Their SSTs have random bytes.
- `restore` opens every store with an empty disk, as the tasks of one executor do side by side.
- `raw` fetches the same bytes over the fastest number of connections, and throws them away.
- `files` also computes check sums and writes files. It uses nothing of Millpond's, so it shows what
  the machine can do.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from millpond.agent.service import AgentService

RUN_BYTES = 8 << 20  # of one plain GET: Millpond's own default for parts
_CONNECTIONS = (8, 16, 32)


def _call(
    service: AgentService, method: str, store: dict[str, Any], **request: Any
) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        service.handle(method, json.dumps({"store": store, **request}))
    )
    if "error" in answer:
        raise RuntimeError(f"{method}: {answer['error']}")
    ok: dict[str, Any] = answer["ok"]
    return ok


def _store(spec: dict[str, Any], partition: int, run: str) -> dict[str, Any]:
    local = Path(spec["local"]) / run / str(partition)
    local.mkdir(parents=True)
    return {
        "root": f"file:{spec['checkpoint']}/state",
        "operator": 0,
        "partition": partition,
        "name": "default",
        "run_id": run,
        "local_dir": str(local),
        "checkpoint_format": 2,
        "partitions_hint": spec["partitions"],
        "options": spec["options"],
        "hadoop": spec["hadoop"],
        "retain_versions": 2,
        "min_deltas_for_snapshot": 2,
        "maintenance_interval_ms": 0,
    }


def _side_by_side(threads: int, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def store(spec: dict[str, Any]) -> dict[str, Any]:
    """Give every partition a snapshot of one SST of `megabytes`, and a changelog above it."""
    from millpond.format.changelog import ChangelogHeader, ChangelogWriter
    from millpond.format.layout import new_staging_name
    from millpond.model.ids import StoreId, new_id
    from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo

    service = AgentService()
    size_bytes = spec["megabytes"] * 1_000_000
    block = os.urandom(1 << 20)

    def one(partition: int) -> str:
        it = _store(spec, partition, "store")
        plan = _call(
            service, "open", it, version=0, id=None, excluded=[], load_empty=False, generation=1
        )
        groups = KeyGroupsInfo(
            max_parallelism=plan["max_parallelism"],
            base=plan["base"],
            partitions=plan["partitions"],
        )

        def commit(version: int, base_id: str) -> str:
            id = new_id()
            header = ChangelogHeader(
                version=version,
                id=id,
                lineage_base=version - 1,
                lineage=(base_id,),
                empty_base=False,
                run_id="store",
                store=StoreId(0, partition, "default"),
                key_groups=groups,
                column_families=(ColumnFamily("default", 0),),
                keys=1,
                created_by="bench",
            )
            staged = Path(plan["staging_dir"]) / new_staging_name()
            with staged.open("xb") as file:
                writer = ChangelogWriter(file, header, codec="none")
                writer.put(b"key", b"")
                writer.finish()
            _call(service, "publish_changelog", it, version=version, id=id, staged=str(staged))
            return id

        id = commit(1, "")
        directory = Path(it["local_dir"]) / "snapshot"
        directory.mkdir()
        with (directory / "000001.sst").open("wb") as file:
            file.write(partition.to_bytes(4, "big"))
            while file.tell() < size_bytes:
                file.write(block[: size_bytes - file.tell()])
        (directory / "CURRENT").write_text("MANIFEST-000005\n")
        (directory / "MANIFEST-000005").write_text("000001.sst")
        described = {
            "name": "000001.sst",
            "size_bytes": size_bytes,
            "smallest_hex": "00",
            "largest_hex": "ff",
        }
        _call(
            service,
            "publish_snapshot",
            it,
            version=1,
            id=id,
            db_checkpoint=str(directory),
            files=[described | {"entries": 1, "deletions": 0, "level": 6}],
            keys=1,
            column_families=[{"name": "default", "id": 0, "kind": "point", "internal": False}],
            partitions=plan["partitions"],
            scalable=True,
            unscalable_reason="",
        )
        newest = commit(2, id)
        shutil.rmtree(it["local_dir"])
        return newest

    return {"ids": _side_by_side(4, [partial(one, p) for p in range(spec["partitions"])])}


def restore(spec: dict[str, Any]) -> dict[str, Any]:
    """Open every store at its newest version, `tasks` at a time."""
    service = AgentService()
    # Open one store first, so that boto3 is loaded and connected: an executor restores many stores.
    _call(
        service,
        "open",
        _store(spec, 0, "first"),
        version=2,
        id=spec["ids"][0],
        excluded=[],
        generation=1,
    )
    stores = [_store(spec, partition, "restore") for partition in range(spec["partitions"])]

    def one(partition: int) -> int:
        id = spec["ids"][partition]
        plan = _call(
            service, "open", stores[partition], version=2, id=id, excluded=[], generation=1
        )
        restored: int = plan["restore_bytes"]
        return restored

    _warm(spec)
    begin, begin_cpu = time.monotonic(), time.process_time()
    size_bytes = sum(
        _side_by_side(spec["tasks"], [partial(one, p) for p in range(spec["partitions"])])
    )
    return _rate(size_bytes, time.monotonic() - begin, time.process_time() - begin_cpu)


def _warm(spec: dict[str, Any]) -> None:
    """Take as much memory as the files will need, and free it again.

    A hypervisor may have taken free memory back. It returns it page by page, at about 300 MB/s, and
    the benchmark would measure that.
    """
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=spec["local"], buffering=0) as file:
        for _ in range(spec["partitions"] * spec["megabytes"] * 1_000_000 // len(block)):
            file.write(block)


def _rate(size_bytes: int, seconds: float, cpu_s: float) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    mb = size_bytes / 1e6
    return {
        "mb": mb,
        "seconds": seconds,
        "mb_per_s": mb / seconds,
        "cpu_s": cpu_s,
        "peak_memory_bytes": peak,
    }


def raw(spec: dict[str, Any]) -> dict[str, Any]:
    """Fetch the same objects by plain GETs of 8 MiB. Return the fastest number of connections."""
    return _fastest(
        {connections: _fetch_all(spec, connections, {}) for connections in _CONNECTIONS}
    )


def files(spec: dict[str, Any]) -> dict[str, Any]:
    """Fetch as `raw`, but write each object to a file, and compute its check sum."""
    tried = {}
    for connections in _CONNECTIONS:
        Path(spec["local"]).mkdir(parents=True, exist_ok=True)
        _warm(spec)
        opened = {
            key: (Path(spec["local"]) / f"{i}").open("xb", buffering=0)
            for i, (key, _) in enumerate(spec["objects"])
        }
        tried[connections] = _fetch_all(
            spec, connections, {key: file.fileno() for key, file in opened.items()}
        )
        for file in opened.values():
            file.close()
        shutil.rmtree(spec["local"])
    return _fastest(tried)


def _fastest(tried: dict[int, dict[str, Any]]) -> dict[str, Any]:
    best = max(tried, key=lambda connections: tried[connections]["mb_per_s"])
    return tried[best] | {"connections": best}


def _fetch_all(spec: dict[str, Any], connections: int, files: dict[str, int]) -> dict[str, Any]:
    parts = [
        (key, start, min(RUN_BYTES, size_bytes - start))
        for key, size_bytes in spec["objects"]
        for start in range(0, size_bytes, RUN_BYTES)
    ]
    server = urlsplit(spec["endpoint"])
    local = threading.local()

    def fetch(key: str, start: int, length: int) -> int:
        if not hasattr(local, "link"):
            local.link = http.client.HTTPConnection(str(server.hostname), server.port)
            local.buffer = memoryview(bytearray(1 << 20))
        local.link.request(
            "GET", f"/{quote(key)}", headers={"Range": f"bytes={start}-{start + length - 1}"}
        )
        answer = local.link.getresponse()
        received = crc32 = 0
        while count := answer.readinto(local.buffer):
            if key in files:
                os.pwrite(files[key], local.buffer[:count], start + received)
                crc32 = zlib.crc32(local.buffer[:count], crc32)
            received += count
        if received != length:
            raise RuntimeError(f"{key}: {received} bytes of {length}: {answer.status}")
        return received

    begin, begin_cpu = time.monotonic(), time.process_time()
    size_bytes = sum(_side_by_side(connections, [partial(fetch, *part) for part in parts]))
    return _rate(size_bytes, time.monotonic() - begin, time.process_time() - begin_cpu)


if __name__ == "__main__":
    _spec = json.loads(Path(sys.argv[2]).read_text())
    _result = {"store": store, "restore": restore, "raw": raw, "files": files}[sys.argv[1]](_spec)
    Path(sys.argv[3]).write_text(json.dumps(_result))
