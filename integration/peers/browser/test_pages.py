"""The pages of `millpond ui` in Chromium: every page of every kind of place."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.jvm import MILLPOND, REPO
from integration.peers.browser.conftest import Scene, Shown
from integration.processes import wait_until
from millpond import checkpoint
from millpond.model.key_groups import KeyGroups
from millpond.operations.rescale import rescale
from tests.checkpoints import CheckpointBuilder

pytestmark = [pytest.mark.spark, pytest.mark.peer]

_TABS = ("batches", "stores", "groups", "files", "storage", "savepoints", "plan", "verify")
_STATE = "spark.sql.streaming.stateStore."
_WAIT_MS = 30_000
_IMAGES = REPO / "docs" / "img"


_JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
numbers = spark.readStream.format("rate").load()
counts = numbers.groupBy("value").count()
counts.writeStream.outputMode("update").format("noop").start()
"""


class Page:
    """A page that remembers what went wrong in it."""

    def __init__(self, browser: Any, shown: Shown, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.wrong: list[str] = []
        self.shown = shown
        self.tab.on("console", self._said)
        self.tab.on("pageerror", lambda e: self.wrong.append(str(e)))
        self.tab.on("request", self._asked)
        self.tab.goto(f"{shown.address}/?token={shown.token}")
        self.ready("")

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.shown.address, "data:")):
            self.wrong.append(f"asked for {request.url}")

    def places(self) -> dict[str, str]:
        """Return the ids of the places, by path."""
        answer = self.tab.evaluate("fetch('api/places').then(a => a.json())")
        return {place["path"]: place["id"] for place in answer["places"]}

    def go(self, place: Path, tab: str = "", **given: object) -> Any:
        """Open a page of a place, and return it once it is complete."""
        query = "&".join(f"{name}={value}" for name, value in given.items())
        target = f"#/p/{self.places()[str(place)]}/{tab}{'?' + query if query else ''}"
        self.tab.evaluate("to => { location.hash = to; }", target)
        self.ready(target)
        return self.tab

    def ready(self, target: str) -> None:
        """Wait until a page is complete."""
        self.tab.wait_for_selector(f'#main[data-ready="{target}"]', timeout=_WAIT_MS)

    def reaches(self, script: str, number: int) -> None:
        """Wait until a script gives this number, or more."""
        wait_until(
            lambda: self.tab.evaluate(f"Number({script})") >= number, seconds=30, what=script
        )

    def text(self) -> str:
        """Return what the page says."""
        found: str = self.tab.inner_text("#main")
        return found

    def press(self, name: str, wait_ms: int = _WAIT_MS) -> str:
        """Press a button that asks for more, and return what the answer says."""
        self.tab.get_by_role("button", name=name).click()
        self.tab.wait_for_selector("div[aria-live][data-ready]", timeout=wait_ms)
        found: str = self.tab.inner_text("div[aria-live]")
        return found


@pytest.fixture
def page(browser: Any, shown: Shown) -> Iterator[Page]:
    made = Page(browser, shown)
    yield made
    made.context.close()
    assert made.wrong == []


@pytest.mark.sample
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_every_page(browser: Any, shown: Shown, scene: Scene, width: int, dark: bool) -> None:
    scheme = "dark" if dark else "light"
    page = Page(browser, shown, viewport={"width": width, "height": 800}, color_scheme=scheme)
    background = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 27)" if dark else "rgb(255, 255, 255)")
    assert "Cannot be shown" in page.text() and "no such directory" in page.text()
    for place in (scene.empty, scene.small, scene.large):
        for tab in _TABS:
            page.go(place, tab)
            assert page.text().strip(), tab
            assert page.tab.locator(".error").count() == 0, (tab, page.text())
            scrolls = "document.documentElement.scrollWidth > window.innerWidth"
            assert not page.tab.evaluate(scrolls), (place.name, tab)
    for tab in ("contents", "verify"):
        page.go(scene.saved, tab)
        assert page.tab.locator(".error").count() == 0
    page.context.close()
    assert page.wrong == []


def test_the_numbers_are_those_of_the_commands(page: Page, scene: Scene) -> None:
    kept = checkpoint.history(scene.small).batches
    page.go(scene.small, "batches")
    assert page.tab.locator("figure.chart canvas").count() == 6
    rows = page.tab.locator("#last-batches tbody tr")
    assert rows.count() == len(kept) >= 5
    newest = rows.first.inner_text().split("\t")
    assert newest[0] == str(kept[-1].batch) and newest[3] == f"{kept[-1].duration_ms:,}"
    (op,) = kept[-1].operators
    assert newest[8:10] == [f"{op.commit_ms:,}", f"{op.metrics['millpondSnapshotCount']:,}"]
    operator = page.tab.locator("#operators tbody tr").inner_text().split("\t")
    assert operator[:4] == [f"0 {op.name}", "2", "2", f"{op.rows:,}"]
    shown = checkpoint.show(scene.large)
    page.go(scene.large, "stores")
    assert page.tab.locator("tbody tr").count() == 200
    page.go(scene.large, "groups")
    keys = sum(store.keys or 0 for store in shown.operators[0].stores)
    assert f"Live keys\n{keys:,}" in page.text() and "Hot key groups\nnone" in page.text()
    page.tab.focus("canvas.heat")
    page.tab.keyboard.press("ArrowDown")
    page.tab.keyboard.press("ArrowRight")
    assert "Partition 1, key group 201: " in page.text()
    assert "operator" in page.press("Read all rows").lower()


def test_snapshots_attempts_and_what_they_share(page: Page, scene: Scene) -> None:
    view = checkpoint.show(scene.small).operators[0].stores
    store = max(view, key=lambda s: len(s.snapshots))
    page.go(scene.small, "files", operator=0, partition=store.partition, store=store.name)
    snapshots = page.tab.get_by_role("table", name="Snapshots", exact=True).locator("tbody tr")
    assert snapshots.count() == len(store.snapshots) > 1
    fates = page.tab.get_by_role("table", name="Changelogs").locator("tbody td:last-child")
    assert fates.all_inner_texts().count("lost") == 1
    page.tab.select_option("select", index=1)
    page.tab.wait_for_url("**partition=1*")
    page.ready(page.tab.evaluate("location.hash"))
    page.go(scene.saved, "contents")
    sharing = page.tab.get_by_role("table", name="Shared files").locator("tbody tr")
    assert sharing.count() == 1 and str(scene.small) in sharing.inner_text()
    page.go(scene.small, "savepoints")
    (saved,) = page.tab.get_by_role("table", name="Savepoints").locator("tbody tr").all()
    cells = saved.inner_text().split("\t")
    assert cells[:2] == [str(scene.saved), "4"] and cells[5] == cells[6] != "0 B"


def test_the_list_of_places(page: Page, scene: Scene) -> None:
    rows = page.tab.get_by_role("table", name="Queries").locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[1:] for row in rows] == [
        ["stopped", "\u2013"],
        ["stopped", "1"],
        ["stopped", "4"],
    ]
    (saved,) = page.tab.get_by_role("table", name="Savepoints").locator("tbody tr").all()
    assert saved.inner_text().split("\t")[2:4] == ["4", "native"]


def test_what_a_job_would_do_with_a_savepoint(browser: Any, scene: Scene, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    server = Shown(scene.saved, "--job", job, log=tmp_path / "log")
    try:
        page = Page(browser, server)
        page.go(scene.saved, "contents")
        answer = page.press("Ask the job", wait_ms=180_000)
        assert "Spark would refuse the job" in answer and "stateStoreSave" in answer
        assert "differ" in answer
        page.context.close()
        assert page.wrong == []
    finally:
        server.stop()


def test_what_rescale_and_verify_would_say(page: Page, scene: Scene) -> None:
    page.go(scene.large, "plan")
    page.tab.fill("#partitions", "400")
    answer = page.press("What would it do?")
    assert "new manifests name the old files" in answer and "--partitions 400" in answer
    page.tab.fill("#partitions", "0")
    assert "PARTITIONS_INVALID" in page.press("What would it do?")
    page.go(scene.small, "verify")
    assert "Nothing is wrong." in page.press("Read everything back")
    page.wrong.clear()  # the browser notes the answer 400


def test_prices_are_the_users(page: Page, scene: Scene) -> None:
    page.go(scene.small, "storage")
    page.tab.fill("input[name=month]", "1048576")
    size = sum(path.stat().st_size for path in scene.small.rglob("*") if path.is_file())
    dollars = 1048576 * size / 2**30
    assert f"to keep the files, a month\n${dollars:.2f}" in page.text()


def test_the_keyboard_alone(page: Page, scene: Scene) -> None:
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.textContent") == "To the content"
    page.go(scene.small, "batches")
    page.tab.focus("nav.tabs a >> nth=0")
    page.tab.keyboard.press("Tab")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_url("**/stores")
    page.ready(page.tab.evaluate("location.hash"))
    assert page.tab.locator("nav.tabs a[aria-current=page]").inner_text() == "Stores"


def test_it_follows_a_running_query(browser: Any, spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "running"
    spark.conf.set(f"{_STATE}providerClass", MILLPOND)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    query = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 50)
        .load()
        .groupBy("value")
        .count()
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(place))
        .trigger(processingTime="1 second")
        .start()
    )
    server = None
    try:
        wait_until(lambda: (place / "commits" / "1").exists(), seconds=60, what="batch 1")
        server = Shown(place, log=tmp_path / "log")
        page = Page(browser, server)
        page.go(place, "batches")
        late = []
        for _ in range(4):
            before = max(int(p.name) for p in (place / "commits").iterdir() if p.name.isdecimal())
            commit = place / "commits" / str(before + 1)
            page.reaches("document.getElementById('live').dataset.batch", before + 1)
            now = page.tab.evaluate("Date.now()")
            late.append(now - commit.stat().st_mtime_ns / 1e6)
            page.reaches("document.querySelector('#last-batches tbody td').textContent", before + 1)
        assert sorted(late)[1] < 2000, late
        page.go(place, "stores")
        assert "process" in page.text()
        page.go(place, "plan")
        assert "--partitions 4" in page.press("What would it do?")
        page.context.close()
    finally:
        query.stop()
        spark.conf.unset(f"{_STATE}providerClass")
        spark.conf.unset("spark.sql.shuffle.partitions")
        if server is not None:
            server.stop()


def test_damage_and_a_place_that_goes(browser: Any, scene: Scene, tmp_path: Path) -> None:
    place = tmp_path / "damaged"
    shutil.copytree(scene.small, place)
    changelogs = sorted(place.glob("state/0/*/*.changelog"))
    changelogs[-1].write_bytes(changelogs[-1].read_bytes()[:-9])
    next(iter(place.glob("millpond/history/*.gz"))).write_bytes(b"damaged")
    server = Shown(place, log=tmp_path / "log")
    try:
        page = Page(browser, server)
        page.go(place, "batches")
        assert "it is damaged" in page.text()
        page.go(place, "verify")
        assert "CHANGELOG_DAMAGED" in page.press("Read everything back")
        page.go(place, "stores")
        assert page.tab.locator("tbody tr").count() > 0
        shutil.rmtree(place)
        page.tab.wait_for_selector("#live.off", timeout=_WAIT_MS)
        page.tab.goto(page.tab.url.partition("#")[0] + "#/")
        page.tab.wait_for_selector("text=Cannot be shown", timeout=_WAIT_MS)
        page.context.close()
    finally:
        server.stop()


@pytest.mark.parametrize("partitions", [2, 12])
def test_what_a_rescale_left_is_marked_and_bounds_nothing(
    browser: Any, tmp_path: Path, partitions: int
) -> None:
    built = CheckpointBuilder(tmp_path / "query", partitions=4, groups=KeyGroups(48, 12)).build()
    rescale(built.storage, "it", partitions)
    server = Shown(built.root, log=tmp_path / "log")
    try:
        page = Page(browser, server)
        page.go(built.root, "storage")
        (kept,) = page.tab.get_by_role("table", name="Retention").locator("tbody tr").all()
        cells = kept.inner_text().split("\t")
        assert cells[1] == "1 to 7", "of the partitions that there were"
        page.go(built.root, "stores")
        table = page.tab.get_by_role("table", name="Stores of operator 0")
        shown = table.locator("tbody td:first-child").all_inner_texts()
        gone = [f"{n} (gone)" for n in range(partitions, 4)]
        assert shown == [*map(str, range(partitions)), *gone]
        assert ("went by a rescale" in page.text()) == bool(gone)
        page.context.close()
        assert page.wrong == []
    finally:
        server.stop()


def test_batches_that_came_while_nobody_looked(browser: Any, shown: Shown, scene: Scene) -> None:
    """A hidden tab asks for nothing. A line was drawn from what it knew to the newest batches."""
    page = Page(browser, shown)
    (like,) = checkpoint.history(scene.small, last=1).to_json()["batches"]
    newest, asked = 4, []

    def answer(request: Any) -> None:
        last = int(request.request.url.partition("last=")[2])
        asked.append(last)
        numbers = range(max(0, newest + 1 - last), newest + 1)
        batches = [{**like, "batch": n, "at_ms": like["at_ms"] + 1000 * n} for n in numbers]
        request.fulfill(json={"batches": batches, "problems": []})

    page.tab.route("**/history?*", answer)
    page.tab.route("**/pulse*", lambda request: request.fulfill(json={"batch": newest}))
    page.go(scene.small, "batches")
    page.reaches("document.getElementById('live').dataset.batch", newest)
    for newest in (6, 300):
        page.reaches("document.querySelector('#last-batches tbody td').textContent", newest)
    assert asked[0] == 1000 and asked.index(50) < asked.index(1000, 1)
    assert asked.count(1000) == 2, "only once it does not know of some"
    page.context.close()
    assert page.wrong == []


def _groups(*stores: tuple[str, list[list[int] | None]]) -> dict[str, object]:
    """Return what `groups` answers. Of a partition that has none nothing is known."""
    return {
        "stores": [
            {
                "operator": 0,
                "name": name,
                "store": "default",
                "groups": of,
                "unknown": [partition for partition, keys in enumerate(of) if keys is None],
            }
            for name, of in stores
        ]
    }


def test_key_groups_of_a_query_that_changes(browser: Any, shown: Shown, scene: Scene) -> None:
    """An error goes with the next look that succeeds, and what was shown stays below it meanwhile.
    Stores come with the first batch, and go with a change of the job.
    """
    page = Page(browser, shown)
    answer: dict[str, Any] = {"status": 200, "json": _groups()}
    batch = 0
    page.tab.route("**/groups?*", lambda asked: asked.fulfill(**answer))
    page.tab.route("**/pulse*", lambda asked: asked.fulfill(json={"batch": batch}))

    def look(found: dict[str, Any], says: str, *, status: int = 200) -> str:
        """Let a batch come, and return what the page shows once it says this."""
        nonlocal batch
        page.reaches("document.getElementById('live').dataset.batch", batch)
        answer.update(status=status, json=found)
        batch += 1
        page.tab.wait_for_selector(f"#main :text({json.dumps(says)}):visible", timeout=_WAIT_MS)
        return page.text()

    counts = _groups(("count", [[1, 2], [3, 4]]))
    wrong = {"code": "STORAGE_UNAVAILABLE", "message": "no answer"}
    page.go(scene.small, "groups")
    assert "No state was written yet." in page.text()
    first = look(counts, "store default")
    assert "No state was written yet." not in first and "Live keys" in first
    failed = look({"error": wrong}, "no answer", status=503)
    assert "STORAGE_UNAVAILABLE" in failed and "Live keys" in failed
    assert "not known" not in failed
    some = look(_groups(("count", [[1, 2], None, [9, 0], None])), "partitions 1, 3 are not known")
    assert "Live keys\nat least 12" in some and "Fullest partition\n2, 1.50 times" in some
    assert "Key groups with keys\n3 of 4" in some
    unknown = look(_groups(("count", [None, None])), "No file tells the keys")
    assert "STORAGE_UNAVAILABLE" not in unknown and "Live keys" not in unknown
    other = look(_groups(("dedupe", [[7]])), "dedupe")
    assert "No file tells the keys" not in other and "count" not in other
    page.context.close()
    assert [text for text in page.wrong if "503" not in text] == []


def test_a_stranger_sees_nothing(browser: Any, shown: Shown) -> None:
    for address, headers in (
        ("/", {}),
        ("/api/places", {"Authorization": "Bearer wrong"}),
        ("/static/app.js", {}),
    ):
        request = urllib.request.Request(shown.address + address, headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        assert refused.value.code == 401
        told = json.loads(refused.value.read())["error"]
        assert told["code"] == "TOKEN_WRONG" and told["hint"]
    trusted = {"Authorization": f"Bearer {shown.token}"}
    for path in ("/static/..%2fapp.py", "/static/__init__.py", "/api/0123/query", "/api/x/y/z"):
        request = urllib.request.Request(shown.address + path, headers=trusted)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        assert refused.value.code in (400, 404), path


@pytest.mark.skipif("MILLPOND_DOCS_REWRITE" not in os.environ, reason="draws the docs' pictures")
def test_pictures_of_the_docs(page: Page, scene: Scene) -> None:
    page.tab.set_viewport_size({"width": 1100, "height": 760})
    pictures = [(scene.small, tab) for tab in ("batches", "files", "storage", "savepoints")]
    for place, tab in [*pictures, (scene.large, "groups")]:
        page.go(place, tab)
        page.tab.screenshot(path=str(_IMAGES / f"ui-{tab}.png"))
