"""What `millpond serve` answers: what `read_state` has at the batch that the answer names."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import millpond
from millpond import savepoint
from millpond.errors import ErrorKind, FormatError
from millpond.model.ids import StoreId
from millpond.serve.app import STALE_MS, serve_app
from millpond.serve.following import Following
from millpond.serve.lookups import ARROW, Limits
from millpond.serve.openapi import document
from millpond.state import key_reader, tables
from millpond.state.tables import first_rows
from millpond.web.server import Route, Starlette
from tests.asgi import Answer, ask
from tests.join_checkpoints import ROWS, JoinBuilder
from tests.row_checkpoints import HashedBuilder, begun_ms

LIMITS = Limits(keys=20, body_bytes=2000, rows=30, requests=2)


class Served:
    """A query of `built` batches whose logs show less of them, and its application."""

    def __init__(self, root: Path, spark_format: int) -> None:
        self.built = HashedBuilder(root / "query", spark_format=spark_format)
        self.built.build(batches=10, snapshots=(3, 5, 8))
        self.hidden = self.built.hide(4, 9)
        self.following = Following(self.built.root, every_ms=1)
        self.app: Starlette = serve_app(self.following, LIMITS)

    def commit(self, batch: int) -> None:
        self.built.show(self.hidden[batch])

    def ask(self, url: str, **more: Any) -> Answer:
        return ask(self.app, url, **more)

    def keys(self, *keys: Any, **more: Any) -> Answer:
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        body = json.dumps({"keys": keys, **more}).encode()
        return self.ask("/v1/lookup", method="POST", body=body, headers=headers)


@pytest.fixture(params=[1, 2], ids=["checkpoint-format-1", "checkpoint-format-2"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, request.param)
    yield served
    served.following.stop()


def _code(answer: Answer) -> str:
    told = answer.json()["error"]
    assert told["message"]
    assert told["hint"]
    return f"{answer.status} {told['code']}"


def _every(served: Served, batch: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = millpond.read_state(served.built.root, batch=batch).to_pylist()
    return rows


def _check(served: Served) -> int:
    """Look up all keys that there ever are. Return the batch that the answer names."""
    found = served.keys(*({"k": k} for k in range(20)))
    assert found.status == 200
    told = found.json()
    rows = sorted(_every(served, told["batch"]), key=lambda row: row["key"]["k"])
    assert told["rows"] == [row for row in rows if row["key"]["k"] < 20]
    present = {row["key"]["k"] for row in rows}
    assert told["rows_per_key"] == [int(k in present) for k in range(20)]
    assert told["batch_time_ms"] == begun_ms(told["batch"])
    assert found.headers["millpond-batch"] == str(told["batch"])
    assert found.headers["cache-control"] == "no-store"
    return int(told["batch"])


def test_it_follows_the_query_commit_by_commit(served: Served) -> None:
    assert _check(served) == 3
    for batch in (4, 5):
        served.commit(batch)
        assert _check(served) == batch - 1  # nobody has looked yet
        served.following.look()
        assert _check(served) == batch
    for batch in (6, 7, 8):  # several at once
        served.commit(batch)
    served.following.look()
    assert _check(served) == 8
    assert served.following.problem is None


def test_a_new_run_or_a_way_back_is_followed(served: Served) -> None:
    assert _check(served) == 3
    served.built.storage.put_bytes(
        "state/0/_metadata/v2/4", served.built.storage.read("state/0/_metadata/metadata")
    )
    served.commit(4)
    served.following.look()
    assert _check(served) == 4
    served.built.hide(3, 4)
    served.following.look()
    assert _check(served) == 2


def test_a_request_ends_on_the_batch_on_which_it_began(served: Served) -> None:
    _check(served)
    served.commit(4)
    with served.following.held() as held:
        served.following.look()
        before = held.reader((None, None, None)).table([{"k": k} for k in range(20)])
        assert held.batch == 3
    rows = sorted(_every(served, 3), key=lambda row: row["key"]["k"])
    assert before.to_pylist() == [row for row in rows if row["key"]["k"] < 20]
    assert not held.take()  # it is closed now
    assert _check(served) == 4


def test_what_was_collected_is_followed_or_told(served: Served) -> None:
    for key in [i.key for i in served.built.storage.list("state/0/") if "changelog" in i.key]:
        served.built.storage.delete([key])
    answer = served.keys({"k": 1})  # no store is open yet, and the query has not gone on
    assert _code(answer) == "404 CHANGELOG_MISSING"
    for batch in range(4, 8):
        served.commit(batch)
    assert _check(served) == 7  # its snapshot is whole


def test_a_failed_look_at_a_joins_names_is_no_look_at_the_query(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following asked for them again, of the batch before: it stayed there."""

    def failing(*arguments: Any) -> None:
        raise FormatError("a row of the batch before", kind=ErrorKind.SST_DAMAGED)

    assert _check(served) == 3
    monkeypatch.setattr(key_reader, "join_columns", failing)
    assert _code(served.keys({"other": 1})).endswith("SST_DAMAGED")
    served.commit(4)
    served.following.look()
    assert served.following.problem is None
    assert _check(served) == 4


def test_the_names_of_a_joins_key_are_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = JoinBuilder(tmp_path / "query")
    built.build(batches=7, snapshots=(3, 5))
    hidden = built.hide(4, 6)
    following = Following(built.root, every_ms=1)
    app = serve_app(following, LIMITS)
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return first_rows(*arguments)

    monkeypatch.setattr(tables, "first_rows", counted)

    def found(key: dict[str, int]) -> list[Any]:
        body = json.dumps({"store": ROWS, "keys": [key]}).encode()
        told = ask(app, "/v1/lookup", method="POST", body=body).json()
        return [row["value"]["id"] for row in told["rows"]]

    (k, *_) = built._numbers(StoreId(0, 0, ROWS))[1:]
    assert found({"field0": k}) == found({"field0": k, "index": 0}) == [k]
    assert not calls
    for batch in (3, 4, 5, 6):
        if batch > 3:
            built.show(hidden[batch])
            following.look()
        assert following.problem is None
        for key in ({"id": k}, {"id": k, "index": 0}, {"field0": k}):
            assert found(key) == [k]
        assert len(calls) == 1
    following.stop()


def test_when_the_query_is_gone_the_last_batch_is_still_told(served: Served) -> None:
    assert _check(served) == 3
    rows = served.keys({"k": 1}).json()
    for info in list(served.built.storage.list("")):
        served.built.storage.delete([info.key])
    served.following.look()
    health = served.ask("/healthz")
    assert (health.status, health.json()["status"]) == (503, "stale")
    assert health.json()["problem"]["code"] == "NOT_A_CHECKPOINT"
    assert served.keys({"k": 1}).json() == rows


def test_a_damaged_commit_is_a_problem_until_it_is_mended(served: Served) -> None:
    _check(served)
    good = dict(served.hidden[4])
    served.hidden[4] = {**good, "commits/4": b"no log"}
    served.commit(4)
    served.following.look()
    assert served.ask("/healthz").json()["problem"]["code"] == "FORMAT_DAMAGED"
    assert _check(served) == 3
    served.hidden[4] = good
    served.commit(4)
    served.following.look()
    assert served.ask("/healthz").json()["problem"] is None
    assert _check(served) == 4


def test_health(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    health = served.ask("/healthz").json()
    assert (health["status"], health["batch"], health["follows"]) == ("ok", 3, True)
    assert health["batch_time_ms"] == begun_ms(3)
    assert health["age_ms"] > 1_000_000
    # It looks each millisecond: whoever looks each minute is not late before that.
    monkeypatch.setattr(Following, "looked_ms_ago", property(lambda self: STALE_MS + 1))
    assert served.ask("/healthz").json()["status"] == "ok"
    monkeypatch.setattr(Following, "looked_ms_ago", property(lambda self: STALE_MS + 2))
    late = served.ask("/healthz")
    assert (late.status, late.json()["problem"]["code"]) == (503, "STORAGE_UNAVAILABLE")


def test_one_key_in_the_address(served: Served) -> None:
    one = served.ask("/v1/lookup?key=k%3D1&operator=0&store=default&column_family=default")
    assert one.json() == served.keys({"k": 1}).json()
    assert served.ask("/v1/lookup?key=k=1&operator=stateStoreSave").json() == one.json()
    for query in ("", "?key=k", "?key=k=1&key=k=2", "?keys=1", "?key=k=1&store=a&store=b"):
        assert _code(served.ask(f"/v1/lookup{query}")) == "400 INVALID_ARGUMENT"


def test_arrow(served: Served) -> None:
    accept = {"headers": {"accept": f"text/html;q=0.9, {ARROW};q=1"}}
    answer = served.keys({"k": 0}, {"k": 999}, {"k": 1}, **accept)
    assert answer.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer.body).read_all()
    told = served.keys({"k": 0}, {"k": 999}, {"k": 1}).json()
    assert table.to_pylist() == told["rows"]
    assert table.schema.metadata == {
        b"millpond.batch": b"3",
        b"millpond.batch_time_ms": str(begun_ms(3)).encode(),
        b"millpond.rows_per_key": json.dumps(told["rows_per_key"]).encode(),
    }
    none = served.keys(**accept)
    assert pa.ipc.open_stream(none.body).read_all().num_rows == 0


def test_tables(served: Served) -> None:
    assert served.ask("/v1/tables").json() == {
        "batch": 3,
        "batch_time_ms": begun_ms(3),
        "tables": [
            {
                "operator": 0,
                "operator_name": "stateStoreSave",
                "store": "default",
                "column_family": "default",
                "internal": False,
                "key": [{"name": "k", "type": "long"}],
                "value": [{"name": "n", "type": "string"}],
                "prefix": [],
                "example": {"k": 1},
            }
        ],
    }


@pytest.mark.parametrize(
    "key", [{"k": "seven"}, {"k": [1]}, {"k": {"a": 1}}, {"k": 1 << 70}, {"other": 1}, {}]
)
def test_a_wrong_key_is_told_what_a_key_is(served: Served, key: Any) -> None:
    answer = served.keys({"k": 1}, key)
    assert _code(answer) == "400 INVALID_ARGUMENT"
    hint = answer.json()["error"]["hint"]
    assert 'A key here is: k long. For example {"k": 1}.' in hint


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": [1]}',
        b'{"keys": [], "batch": 3}',
        b'{"keys": [], "operator": true}',
        b'{"keys": [], "store": 1}',
        b"[" * 1900,
        b"\xff\xfe",
    ],
)
def test_a_body_that_asks_for_nothing(served: Served, body: bytes) -> None:
    answer = served.ask("/v1/lookup", method="POST", body=body)
    assert _code(answer) == "400 INVALID_ARGUMENT"
    assert "POST {" in answer.json()["error"]["hint"]


def test_what_is_not_there(served: Served) -> None:
    assert _code(served.keys({"k": 1}, operator=7)) == "400 OPERATOR_UNKNOWN"
    assert _code(served.keys({"k": 1}, store="other")) == "400 INVALID_ARGUMENT"
    assert _code(served.keys({"k": 1}, column_family="other")) == "400 INVALID_ARGUMENT"


def test_limits(served: Served) -> None:
    assert served.keys(*[{"k": 1}] * 20).status == 200
    assert _code(served.keys(*[{"k": 1}] * 21)) == "413 REQUEST_TOO_LARGE"
    large = served.ask("/v1/lookup", method="POST", body=b" " * 2001)
    assert _code(large) == "413 REQUEST_TOO_LARGE"
    declared = served.ask("/v1/lookup", method="POST", headers={"content-length": "999999"})
    assert _code(declared) == "413 REQUEST_TOO_LARGE"
    few, small = (
        serve_app(served.following, limits) for limits in (Limits(rows=1), Limits(answer_bytes=50))
    )
    body = b'{"keys": [{"k": 0}, {"k": 1}, {"k": 2}, {"k": 3}]}'
    assert len(served.ask("/v1/lookup", method="POST", body=body).json()["rows"]) > 1
    many = ask(few, "/v1/lookup", method="POST", body=body)
    assert _code(many) == "413 REQUEST_TOO_LARGE" and "1 row" in many.json()["error"]["message"]
    long = ask(small, "/v1/lookup", method="POST", body=body)
    assert _code(long) == "413 REQUEST_TOO_LARGE" and "50 bytes" in long.json()["error"]["message"]
    none = serve_app(served.following, Limits(requests=0))
    busy = ask(none, "/v1/lookup", method="POST", body=body)
    assert _code(busy) == "429 TOO_MANY_REQUESTS"
    assert ask(none, "/healthz").status == 200


def test_the_log_has_no_key_and_no_value(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    served.keys({"k": "a-secret-key"})
    served.ask(f"/v1/lookup?key=k={quote('a-secret-key')}")
    _check(served)
    assert "secret" not in caplog.text
    assert "of 3" not in caplog.text  # a value


def test_the_document_says_what_is_served(served: Served) -> None:
    told = served.ask("/openapi.json").json()
    assert told == json.loads(json.dumps(document(LIMITS)))
    routes = {
        (route.path, method.lower())
        for route in served.app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert {(path, how) for path, ways in told["paths"].items() for how in ways} == routes
    schemas = told["components"]["schemas"]
    for name, answer in (
        ("Rows", served.keys({"k": 1}, {"k": 2})),
        ("Tables", served.ask("/v1/tables")),
        ("Health", served.ask("/healthz")),
        ("Error", served.keys({"k": "x"})),
    ):
        _fits(answer.json(), schemas[name], name)


_TYPES = {
    "integer": "int",
    "string": "str",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}


def _fits(value: Any, schema: Any, place: str) -> None:
    if "oneOf" in schema:
        if value is not None:
            _fits(value, schema["oneOf"][0], place)
        return
    assert type(value).__name__ == _TYPES[schema["type"]], place
    if "enum" in schema:
        assert value in schema["enum"], place
    if "properties" in schema:
        assert set(value) == set(schema["required"]) == set(schema["properties"]), place
        for name, inner in schema["properties"].items():
            _fits(value[name], inner, f"{place}.{name}")
    if schema["type"] == "array":
        for item in value:
            _fits(item, schema["items"], f"{place}[]")


def test_a_savepoint_does_not_change(tmp_path: Path) -> None:
    built = HashedBuilder(tmp_path / "query").build()
    savepoint.create(built.root, tmp_path / "saved")
    following = Following(tmp_path / "saved", every_ms=1)
    following.start()
    app = serve_app(following, LIMITS)
    body = json.dumps({"keys": [{"k": k} for k in range(20)]}).encode()
    told = ask(app, "/v1/lookup", method="POST", body=body).json()
    rows = millpond.read_state(tmp_path / "saved").to_pylist()
    assert told["batch"] == 5
    assert told["rows"] == sorted(
        (row for row in rows if row["key"]["k"] < 20), key=lambda row: row["key"]["k"]
    )
    health = ask(app, "/healthz").json()
    assert (health["status"], health["follows"]) == ("ok", False)
    following.stop()
    assert _code(ask(app, "/healthz")) == "503 STORE_CLOSED"
