"""The benchmark's S3 server behaves as one, and the benchmark's sums are right.

No benchmark runs.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest

from benchmarks import bench_s3, bench_s3_report
from benchmarks.bench_s3_query import Request, by_batch, kind_of
from benchmarks.s3_proxy import operation_of
from millpond.config import MIB, resolve
from millpond.storage import Storage, open_storage
from millpond.storage.growing import begin_growing, drop_unfinished
from millpond.storage.settings import storage_settings
from millpond.testing.storage_contract import StorageContract

_KEYS = {
    "fs.s3a.access.key": "any",
    "fs.s3a.secret.key": "any",
    "fs.s3a.endpoint.region": "us-east-1",
}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with bench_s3.pond(tmp_path_factory.mktemp("pond") / "objects", 0) as running:
        yield running


def storage_at(endpoint: str, prefix: str | None = None) -> Storage:
    options = {
        "storage.s3.endpoint": endpoint,
        "storage.s3.multipartThreshold": 5 * MIB,
        "storage.s3.partSize": 5 * MIB,
    }
    name = f"{uuid.uuid4().hex} % ü" if prefix is None else prefix
    return open_storage(f"s3://pond/{name}", storage_settings(resolve(options), _KEYS))


class TestPond(StorageContract):
    @pytest.fixture
    def storage(self, endpoint: str) -> Storage:
        return storage_at(endpoint)


@pytest.fixture(scope="module")
def noted(endpoint: str) -> Iterator[str]:
    with bench_s3.proxy(endpoint, 0) as running:
        yield running


class TestProxy(StorageContract):
    """What stands before a server passes everything on."""

    @pytest.fixture
    def storage(self, noted: str) -> Storage:
        return storage_at(noted)


def test_the_proxy_notes_each_request(noted: str, tmp_path: Path) -> None:
    storage = storage_at(noted)
    urlopen(f"{noted}/-/log").close()
    storage.put_bytes("a", b"x" * 100)
    assert storage.read("a") == b"x" * 100
    assert [info.key for info in storage.list("")] == ["a"]
    storage.delete(["a"])
    with urlopen(f"{noted}/-/log") as answer:
        log = json.load(answer)
    assert [operation for _, operation, _, _ in log] == ["PUT", "GET", "LIST", "DELETE"]
    assert log[0][2].startswith("pond/") and log[0][2].endswith("/a")
    with urlopen(f"{noted}/-/log") as answer:
        assert json.load(answer) == []


@pytest.mark.parametrize(
    ("line", "headers", "operation", "key"),
    [
        ("HEAD /b/x%20y HTTP/1.1", {}, "HEAD", "b/x y"),
        ("GET /b?list-type=2&prefix=state%2F0 HTTP/1.1", {}, "LIST", "b/state/0"),
        ("PUT /b/x HTTP/1.1", {"x-amz-copy-source": "b/y"}, "COPY", "b/x"),
        ("POST /b/x?uploads HTTP/1.1", {}, "CREATE", "b/x"),
        ("PUT /b/x?partNumber=1&uploadId=u HTTP/1.1", {}, "PART", "b/x"),
        ("POST /b/x?uploadId=u HTTP/1.1", {}, "COMPLETE", "b/x"),
        ("DELETE /b/x?uploadId=u HTTP/1.1", {}, "ABORT", "b/x"),
        ("POST /b?delete HTTP/1.1", {}, "DELETE", "b"),
    ],
)
def test_requests_have_the_names_of_s3(
    line: str, headers: dict[str, str], operation: str, key: str
) -> None:
    assert operation_of(line, headers) == (operation, key)


def test_the_pond_takes_parts_and_refuses_a_missing_bucket(endpoint: str, tmp_path: Path) -> None:
    body = bytes(range(256)) * (45 * 1024)
    (tmp_path / "file").write_bytes(body)
    storage = storage_at(endpoint)
    storage.put_file("x.sst", str(tmp_path / "file"), if_absent=True)
    assert storage.get_to_file("x.sst", str(tmp_path / "back")) is not None
    assert (tmp_path / "back").read_bytes() == body == storage.read("x.sst")
    assert storage.read_range("x.sst", 7_000_000, 5) == body[7_000_000:7_000_005]
    begun = begin_growing(storage, "y.changelog", str(tmp_path / "file"), 0)
    assert begun is not None
    begun.grown(len(body))
    assert begun.finish()
    assert storage.read("y.changelog") == body
    left = f"{endpoint}/pond/left?uploads"
    urlopen(HttpRequest(left, method="POST")).close()
    now_ms = time.time_ns() // 1_000_000
    everything = storage_at(endpoint, "")
    assert drop_unfinished(everything, "", now_ms - 3_600_000) == 0
    assert drop_unfinished(everything, "", now_ms + 3_600_000) == 1
    assert drop_unfinished(everything, "", now_ms + 3_600_000) == 0
    with pytest.raises(Exception, match="HTTP Error 404"):
        urlopen(HttpRequest(f"{endpoint}/no-such-bucket/x"))


def test_requests_are_told_by_batch_and_kind() -> None:
    state = "/x/checkpoint/state/0/7"
    requests: list[Request] = [
        (5, "hadoop", "create", "/x/checkpoint/metadata"),
        (10, "hadoop", "create", "/x/checkpoint/offsets/.0.tmp"),
        (12, "s3", "PUT", "states/query/state/0/7/1.changelog"),
        (13, "s3", "PUT", "states/query/state/0/8/1.changelog"),
        (20, "hadoop", "list", f"{state}"),
        (21, "hadoop", "stat", "/x/checkpoint/state/0/_metadata/v2"),
        (30, "s3", "GET", "states/query/millpond/format.json"),
    ]
    batches = [{"start_ms": 10}, {"start_ms": 20}]
    first, second = by_batch(batches, requests, 30)
    assert first == {"hadoop create logs": 1, "s3 PUT changelog": 2}
    assert second == {"hadoop list state": 1, "hadoop stat metadata": 1}
    assert kind_of("states/query/millpond/format.json") == "millpond"
    assert kind_of("states/query/state/0/1/sst/0a.sst") == "sst"
    assert (bench_s3_report.total(first), bench_s3_report.without_logs(first)) == (3, 2)
    assert (bench_s3_report.lists(first), bench_s3_report.lists(second)) == (0, 1)


def _run(
    batch_ms: list[int], requests: dict[str, int], restart: dict[str, int]
) -> dict[str, object]:
    return {
        "warmup": 1,
        "batches": [{"trigger_ms": ms} for ms in batch_ms],
        "requests": [requests for _ in batch_ms],
        "all_requests": {name: count * len(batch_ms) for name, count in requests.items()},
        "restart": {"batch": {"trigger_ms": 50}, "requests": restart},
    }


def test_goals_and_tables() -> None:
    results = {
        "query_sizes": [{"name": "aggregation", "partitions": 4, "rows": 10, "measured": 2}],
        "query": {
            "aggregation": {
                "millpond": [
                    _run(
                        [900, 100, 120],
                        {"s3 PUT changelog": 4, "hadoop create logs": 6},
                        {"s3 GET sst": 4},
                    )
                ],
                "rocksdb-changelog": [
                    _run([900, 500, 520], {"hadoop create changelog": 40}, {"hadoop list state": 8})
                ],
            }
        },
        "restore": {
            "partitions": 4,
            "megabytes": 5,
            "tasks": 2,
            "links": {
                "625": {
                    "mb_per_s": {"raw": 600, "files": 570, "restore": 540},
                    "share_of_raw": 0.9,
                    "share_of_files": 0.947,
                },
                "0": {
                    "mb_per_s": {"raw": 2000, "files": 1000, "restore": 700},
                    "share_of_raw": 0.35,
                    "share_of_files": 0.7,
                },
            },
        },
    }
    summary = bench_s3_report.summarise(results)
    ours = summary["aggregation"]["millpond"]
    assert (
        ours["batch_ms"],
        ours["requests"],
        ours["state_requests"],
        ours["changelog_puts_a_task"],
    ) == (
        110,
        10,
        4,
        1,
    )
    assert summary["aggregation"]["rocksdb-changelog"]["restart"]["lists"] == 8
    text = bench_s3_report.markdown({**results, "summary": summary})
    assert (
        "| batch, ms | 110 | 510 | 0.22 |" in text
        and "| link of 625 MB/s | 540 | 600 | 90 % | 570 | 95 % |" in text
    )
    assert text.count("reached") == 5 and "missed" not in text
