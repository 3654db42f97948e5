"""What `millpond ui` answers its pages, of places on a disk and on S3."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millpond import checkpoint, savepoint
from millpond.storage.given import given_by, reached_by
from millpond.ui.app import _VIEWS, _Kept, ui_app
from millpond.ui.places import Place
from tests.asgi import Answer, App, ask, asked
from tests.row_checkpoints import HashedBuilder
from tests.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is answered anew: pages ask once a second, and tests do not wait."""
    monkeypatch.setattr("millpond.ui.app._FRESH_S", 0.0)


def app_over(*paths: object, job: str = "", **options: object) -> App:
    given = given_by({name.replace("_", "."): value for name, value in options.items()})
    with reached_by(given):
        return ui_app([str(p) for p in paths], job=job)


def places(app: App) -> dict[str, dict[str, Any]]:
    """Return the places by path."""
    return {place["path"]: place for place in ask(app, "/api/places").json()["places"]}


def page(app: App, place: object, what: str) -> Answer:
    return ask(app, f"/api/{places(app)[str(place)]['id']}/{what}")


@pytest.fixture
def built(tmp_path: Path) -> HashedBuilder:
    made = HashedBuilder(tmp_path / "places" / "query")
    made.build(batches=8, snapshots=(3, 5, 8))
    return made


def test_a_glance_at_each_place(built: HashedBuilder) -> None:
    saved = built.root.parent / "saved"
    savepoint.create(built.root, saved, batch=6)
    app = app_over(built.root.parent)
    assert page(app, built.root, "glance").json() == {"batch": 7, "running": False}
    found = page(app, saved, "glance").json()
    assert found["batch"] == 6 and found["format"] == "native"
    assert found["size_bytes"] == savepoint.show(saved).index.size_bytes


def test_which_savepoints_a_query_has_and_what_they_share(built: HashedBuilder) -> None:
    saved = built.root.parent / "saved"
    savepoint.create(built.root, saved, batch=6)
    other = HashedBuilder(built.root.parent / "other")
    other.build(batches=2, snapshots=(2,))
    app = app_over(built.root.parent)
    (one,) = page(app, built.root, "savepoints").json()["savepoints"]
    assert one["path"] == str(saved) and one["batch"] == 6
    view = savepoint.show(saved)
    ssts = sum(e.size_bytes for k, e in view.index.files.items() if k.endswith(".sst"))
    assert one["sst_bytes"] == one["shared_bytes"] == ssts > 0
    # the other side says the same
    (shared,) = page(app, saved, "saved").json()["shared"]
    assert shared["path"] == str(built.root) and shared["bytes"] == ssts
    built.storage.delete([k for k in view.index.files if k.endswith(".sst")])
    (one,) = page(app, built.root, "savepoints").json()["savepoints"]
    assert one["shared_bytes"] == 0


def test_storage_by_kind_adds_up(built: HashedBuilder) -> None:
    found = page(app_over(built.root), built.root, "storage").json()
    files = [p for p in built.root.rglob("*") if p.is_file()]
    assert sum(kind["files"] for kind in found["kinds"]) == len(files)
    assert sum(kind["bytes"] for kind in found["kinds"]) == sum(p.stat().st_size for p in files)
    by_kind = {kind["kind"]: kind for kind in found["kinds"]}
    shown = checkpoint.show(built.root).operators[0].stores
    assert by_kind["changelogs"]["bytes"] == sum(s.changelog_bytes for s in shown)
    assert by_kind["SSTs"]["files"] == sum(s.sst_files for s in shown)
    assert by_kind["Spark's logs"]["files"] == 2 * 8 + 1
    (at_ms, kept) = found["written"][-1]
    assert kept == sum(kind["bytes"] for kind in found["kinds"]) and at_ms > 0
    assert [b for _, b in found["written"]] == sorted(b for _, b in found["written"])


def test_storage_counts_what_links_lead_to(built: HashedBuilder, tmp_path: Path) -> None:
    """Somebody moved folders to a larger disk, and left links."""
    before = page(app_over(built.root), built.root, "storage").json()["kinds"]
    for number, folder in enumerate(("state/0/1", "state", "offsets")):
        moved = shutil.move(built.root / folder, tmp_path / f"disk-{number}")
        (built.root / folder).symlink_to(moved)
        assert page(app_over(built.root), built.root, "storage").json()["kinds"] == before


def test_a_folder_that_may_not_be_listed_hides_no_other(
    built: HashedBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of other users in /tmp. No page could be shown for it."""
    top = built.root.parent
    (top / "private").mkdir()
    scandir = os.scandir

    def listed(path: str) -> Any:
        if os.path.basename(path) == "private":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("millpond.ui.places.os.scandir", listed)
    assert list(places(app_over(top))) == [str(built.root)]
    (place,) = places(app_over(top / "private")).values()
    assert (place["kind"], place["code"]) == ("unreadable", "STORAGE_DENIED")
    assert "Permission denied" in place["problem"]


def test_what_cannot_be_shown_says_why_once(built: HashedBuilder, tmp_path: Path) -> None:
    app = app_over(built.root, tmp_path / "none", tmp_path)
    place = places(app)[str(tmp_path / "none")]
    assert (place["kind"], place["code"], place["problem"]) == (
        "unreadable",
        "INVALID_ARGUMENT",
        "no such directory",
    )
    assert "checkpointLocation" in place["hint"]
    answer = page(app, tmp_path / "none", "query")
    told = answer.json()["error"]
    assert (answer.status, told["message"]) == (400, "no such directory")
    assert told["hint"] == place["hint"]


def test_a_name_that_is_no_text(built: HashedBuilder) -> None:
    """One such directory, and no place was shown any more."""
    odd = built.root.parent / os.fsdecode(b"caf\xe9")
    shutil.copytree(built.root, odd)
    app = app_over(built.root.parent)
    shown = f"{built.root.parent}/caf\\udce9"
    assert set(places(app)) == {str(built.root), shown}
    assert page(app, shown, "pulse").json() == {"batch": 7}
    answer = page(app, shown, "query")
    assert (answer.status, answer.json()["checkpoint"]) == (200, shown)
    shutil.rmtree(odd)
    assert set(places(app_over(odd))) == {shown}


def test_a_query_that_is_deleted_is_gone(built: HashedBuilder) -> None:
    app = app_over(built.root.parent)
    at = f"/api/{places(app)[str(built.root)]['id']}/pulse"
    assert ask(app, at).json() == {"batch": 7}
    shutil.rmtree(built.root)
    answer = ask(app, at)
    assert answer.status == 400 and "deleted" in answer.json()["error"]["message"]


def test_what_two_ask_for_at_once_is_read_once(
    built: HashedBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything, for one: each press of the button began another reading of the whole state."""
    monkeypatch.setattr("millpond.ui.app._FRESH_S", 60.0)
    readings: list[str] = []
    begun = threading.Barrier(2)

    def read(place: Place) -> dict[str, bool]:
        readings.append(place.path)
        begun.wait(30)
        return {"ok": True}

    monkeypatch.setitem(_VIEWS, "verify", read)
    app = app_over(built.root)
    at = f"/api/{places(app)[str(built.root)]['id']}/verify"
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, app, at) for _ in range(2)]
        begun.wait(30)
        assert [answer.result().json() for answer in asked] == [{"ok": True}] * 2
    assert readings == [str(built.root)]


def test_pages_answer_while_everything_is_read(
    built: HashedBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads everything, and who waits for that, took the threads of all pages: six on a machine
    of two cores. Nobody saw anything any more.
    """
    readings: list[str] = []
    ends = threading.Event()

    def read(place: Place) -> dict[str, bool]:
        readings.append(place.path)
        assert ends.wait(60)
        return {"ok": True}

    for name in ("verify", "skew"):
        monkeypatch.setitem(_VIEWS, name, read)
    others = [built.root.parent / f"other-{n}" for n in range(2)]
    for other in others:
        shutil.copytree(built.root, other)
    app = app_over(built.root.parent)
    ids = {path: place["id"] for path, place in places(app).items()}
    mine = ids[str(built.root)]

    async def scene() -> None:
        crowd = [asyncio.create_task(asked(app, f"/api/{mine}/verify")) for _ in range(40)]
        few = [
            asyncio.create_task(asked(app, f"/api/{place}/skew"))
            for place in (mine, *(ids[str(other)] for other in others))
        ]
        try:
            async with asyncio.timeout(30):
                while len(readings) < 4:
                    await asyncio.sleep(0.01)
                assert (await asked(app, f"/api/{mine}/glance")).json()["batch"] == 7
                refused = await asked(app, f"/api/{ids[str(others[0])]}/verify")
        finally:
            ends.set()
            answers = await asyncio.gather(*crowd, *few)
        assert refused.status == 429 and refused.json()["error"]["code"] == "TOO_MANY_REQUESTS"
        assert refused.headers["retry-after"] and refused.json()["error"]["hint"]
        assert [answer.json() for answer in answers] == [{"ok": True}] * 43
        assert len(readings) == 4
        again = await asked(app, f"/api/{ids[str(others[0])]}/verify")
        assert again.json() == {"ok": True}

    asyncio.run(scene())


_READS_EVERYTHING = """
import sys, threading
from millpond.ui.app import _VIEWS, ui_app
from millpond.web.server import run

def read(place):
    print("reads", flush=True)
    threading.Event().wait()

_VIEWS["verify"] = read
run(ui_app([sys.argv[1]]), host="127.0.0.1", port=0, token="t",
    announce=lambda url: print(url, flush=True))
"""


@pytest.mark.deep
def test_a_signal_ends_it_while_everything_is_read(built: HashedBuilder) -> None:
    """Python waits for threads at its end."""
    place = places(app_over(built.root))[str(built.root)]["id"]
    command = [sys.executable, "-c", _READS_EVERYTHING, str(built.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline().rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as connection:
                head = f"GET /api/{place}/verify HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                connection.sendall(f"{head}Authorization: Bearer t\r\n\r\n".encode())
                assert child.stdout.readline() == "reads\n"
                child.send_signal(signal.SIGINT)
                assert child.wait(timeout=60) == 0
        finally:
            child.kill()


class _Thing:
    """A name or a value. A test sees that it is gone."""

    def __init__(self, of: str = "") -> None:
        self.of = of
        self.sought = threading.Event()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Thing) and self.of == other.of

    def __hash__(self) -> int:
        self.sought.set()
        return hash(self.of)


def test_what_is_stale_goes_and_its_name_too() -> None:
    """Each number of batches, and each store, is a name. A server runs for weeks."""
    kept = _Kept()

    def ask_once(of: str, *, fails: bool = False) -> list[weakref.ref[_Thing]]:
        name, value = _Thing(of), _Thing()

        def make() -> _Thing:
            if fails:
                raise OSError("a failure of the test")
            return value

        if fails:
            with pytest.raises(OSError, match="of the test"):
                kept.get(name, make)
        else:
            assert kept.get(name, make) is value
        return [weakref.ref(name), weakref.ref(value)]

    known = [*ask_once("one"), *ask_once("two"), *ask_once("three", fails=True)]
    kept.get("another", int)
    assert [thing() for thing in known] == [None] * 6


def test_what_another_thread_makes_is_not_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.ui.app._FRESH_S", 60.0)
    kept = _Kept()
    begun, ends = threading.Event(), threading.Event()
    first, second = _Thing("slow"), _Thing("slow")

    def make() -> _Thing:
        assert not begun.is_set(), "two make it"
        begun.set()
        assert ends.wait(30)
        return _Thing()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(kept.get, first, make)
        assert begun.wait(30)
        kept.get("another", int)
        other = pool.submit(kept.get, second, make)
        assert second.sought.wait(30)
        ends.set()
        assert one.result() is other.result()


def test_to_follow_a_query_on_s3_takes_a_listing(
    server: S3Server, built: HashedBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files lie beside it."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    bucket = server.bucket()
    storage = server.storage(bucket, "places/query")
    for info in built.storage.list(""):
        storage.put_bytes(info.key, built.storage.read(info.key))
    root = f"s3://{bucket}/places"
    app = app_over(root)
    at = f"/api/{places(app)[f'{root}/query']['id']}/pulse"
    assert ask(app, at).json() == {"batch": 7}
    before = server.counts.copy()
    assert ask(app, at).json() == {"batch": 7}
    assert server.counts - before == {"LIST": 1, "GET": 1}  # GET: is the state elsewhere?


def test_options_reach_savepoints_too(server: S3Server, built: HashedBuilder) -> None:
    bucket = server.bucket()
    saved = built.root.parent / "saved"
    savepoint.create(built.root, saved)
    storage = server.storage(bucket, "saved")
    for path in saved.rglob("*"):
        if path.is_file():
            storage.put_bytes(str(path.relative_to(saved)), path.read_bytes())
    root = f"s3://{bucket}/saved"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in server.environment().items():
            if name != "AWS_ENDPOINT_URL":
                patched.setenv(name, value)
        app = app_over(root, storage_s3_endpoint=server.endpoint)
        assert page(app, root, "saved").json()["batch"] == 7
        verified = page(app, root, "verify").json()
        assert verified["ok"], verified
        # The command that the page runs reads the savepoint before it looks for the job.
        app = app_over(root, job="none.py", storage_s3_endpoint=server.endpoint)
        told = page(app, root, "jobplan").json()["error"]
        assert told["message"] == "there is no file none.py"


def test_what_a_job_would_do_with_a_savepoint(built: HashedBuilder, tmp_path: Path) -> None:
    saved = built.root.parent / "saved"
    savepoint.create(built.root, saved)
    without = page(app_over(saved), saved, "jobplan")
    assert without.status == 400 and "--job" in without.json()["error"]["hint"]
    answer = page(app_over(saved, job=str(tmp_path / "none.py")), saved, "jobplan")
    told = answer.json()["error"]
    assert (answer.status, told["code"]) == (400, "INVALID_ARGUMENT")
    assert "none.py" in told["message"]
