"""A JVM follows a store that another one writes, and takes it over: each row is compared.

Two JVMs stand for two executors. What the driver tells them is made up here. Real executors:
`test_standby.py`.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from integration.depth import quick_first
from integration.harness import Harness, Provider, ProviderError, Row, Schema, Store
from integration.processes import wait_until
from integration.store_cases import PARTITIONS, open_provider
from millpond.format.changelog import read_header
from tests.s3_server import HADOOP, Request, s3_server

SCHEMA = Schema("k string, n bigint", "v string")
LISTS = Schema("k string, n bigint", "v string", multi=True)
FOLLOWED = 2  # the partition
Point = tuple[int, "str | None"]
State = dict[int, list[str]]


@pytest.fixture(scope="module")
def jvms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, Harness]]:
    """Return the JVM that writes, and the one that follows."""
    work = tmp_path_factory.mktemp("jvms")
    env = {"MILLPOND_LOG": "INFO"}
    both = Harness(work, env=env), Harness(work, env=env)
    yield both
    for one in both:
        one.stop()


class Scene:
    """One store, its writer, and the other executor."""

    def __init__(
        self,
        jvms: tuple[Harness, Harness],
        checkpoint: Path,
        *,
        format_: int,
        multi: bool = False,
        conf: Mapping[str, str] | None = None,
        padding: str = "",
        hadoop: Mapping[str, str] | None = None,
    ) -> None:
        self.jvms, self.checkpoint, self.conf, self.padding = jvms, checkpoint, conf or {}, padding
        self.hadoop = hadoop
        self.schema = LISTS if multi else SCHEMA
        self.run_id = str(uuid.uuid4())
        self.format = format_
        self.states: dict[Point, State] = {(0, None): {}}
        self.at: Point = (0, None)
        self.writer = self.provider(0)
        # From this store the other executor knows how to open one of the same operator.
        own = self.provider(1, partition=FOLLOWED + 1)
        own.store(0).commit()

    def provider(self, jvm: int, *, partition: int = FOLLOWED) -> Provider:
        return open_provider(
            self.jvms[jvm],
            self.checkpoint,
            schema=self.schema,
            operator="stateStoreSave",
            partition=partition,
            conf={
                "checkpointFormatVersion": self.format,
                "minDeltasForSnapshot": 2,
                "millpond.standby.enabled": True,
                **self.conf,
            },
            run_id=self.run_id,
            hadoop=self.hadoop,
        )

    def batch(self, rng: random.Random, provider: Provider | None = None) -> None:
        """Change some rows, and commit."""
        store = (provider or self.writer).store(*self.at)
        state = {n: list(v) for n, v in self.states[self.at].items()}
        for n in rng.sample(range(40), rng.randrange(1, 12)):
            text = f"{self.at[0]}-{rng.randrange(1000)}{self.padding}"
            if rng.random() < 0.25:
                store.remove(["a", n])
                state.pop(n, None)
            elif self.schema.multi and rng.random() < 0.6:
                store.merge(["a", n], [text])
                state.setdefault(n, []).append(text)
            else:
                store.put(["a", n], [text])
                state[n] = [text]
        done = store.commit()
        self.at = (done.version, done.id)
        self.states[self.at] = state

    def follow(self) -> None:
        """Let the other executor follow to the present version, and wait until it is there."""
        version, id = self.at
        self.told([self.wanted(version, id)])
        wait_until(lambda: self.followed() == version, seconds=30, what=f"version {version}")

    def wanted(self, version: int, id: str | None = None) -> dict[str, object]:
        """Return the store at a version, as the driver names it."""
        return {
            "run_id": self.run_id,
            "operator": 0,
            "partition": FOLLOWED,
            "store": "default",
            "version": version,
            **({"id": id} if id else {}),
        }

    def told(self, follow: list[dict[str, object]]) -> None:
        self.jvms[1].call("told", answer=json.dumps({"follow": follow}))

    def followed(self) -> int:
        return int(self.jvms[1].call("followed", partition=FOLLOWED))

    def restores(self) -> int:
        """Return how often the other executor's agent has laid out the files of the store."""
        log = self.jvms[1].log_path.read_text(errors="replace")
        return log.count(f"store opened store=0/{FOLLOWED} ")

    def check(self, store: Store) -> None:
        found: State = {}
        for (_, n), (text,) in store.scan(**({"multi": True} if self.schema.multi else {})):
            found.setdefault(n, []).append(text)
        assert found == self.states[self.at]
        for n in range(40):
            texts = (
                [text for (text,) in store.values(["a", n])]
                if self.schema.multi
                else ([] if (row := store.get(["a", n])) is None else [row[0]])
            )
            assert texts == self.states[self.at].get(n, []), n

    def taken_over(self) -> Provider:
        """Let the other executor open the store. Return its provider."""
        provider = self.provider(1)
        assert self.followed() == -1, "it is no follower any more"
        read = provider.read_store(*self.at)
        self.check(read)
        read.release()
        return provider


@pytest.mark.parametrize(
    ("format_", "multi"), quick_first([(2, True), (1, False), (1, True), (2, False)])
)
def test_a_follower_has_each_row_whatever_happens_in_between(
    jvms: tuple[Harness, Harness], tmp_path: Path, format_: int, multi: bool
) -> None:
    """Versions are skipped, snapshots made, old files collected, and a restart of the query goes on
    from an older version: then the follower has a version that never was.
    """
    for seed in range(6):
        rng = random.Random(f"{seed} {format_} {multi}")
        scene = Scene(jvms, tmp_path / f"ckpt-{seed}", format_=format_, multi=multi)
        _play(scene, rng)


@pytest.mark.parametrize("multi", quick_first([True, False]))
def test_a_follower_that_is_short_of_memory_has_each_row(
    jvms: tuple[Harness, Harness], tmp_path: Path, multi: bool
) -> None:
    """Batches spill, so their changelogs have keys again. The follower gives its rows up."""
    conf = {"millpond.memory.budget": "64k"}
    for seed in range(4):
        rng = random.Random(f"{seed} {multi}")
        checkpoint = tmp_path / f"ckpt-{seed}"
        _play(Scene(jvms, checkpoint, format_=2, multi=multi, conf=conf, padding="-" * 3000), rng)


def _play(scene: Scene, rng: random.Random) -> None:
    """Write some versions, let the other executor follow, and take the store over."""
    for _ in range(rng.randrange(4, 14)):
        scene.batch(rng)
        what = rng.random()
        if what < 0.5:
            scene.follow()
        if what < 0.3:
            scene.writer.snapshot()
            scene.writer.cleanup()
        if what > 0.85 and (scene.format == 2 or scene.followed() < scene.at[0] > 1):
            # The batch is run again.
            scene.at = max(p for p in scene.states if p[0] == scene.at[0] - 1)
    taken = scene.taken_over()
    for _ in range(3):
        scene.batch(rng, taken)
        taken.snapshot()
        taken.cleanup()
    # What it wrote since serves others.
    scene.writer.close()
    scene.writer = scene.provider(0)
    scene.check(scene.writer.read_store(*scene.at))
    taken.close()
    scene.told([])


def test_a_take_over_restores_nothing(jvms: tuple[Harness, Harness], tmp_path: Path) -> None:
    rng = random.Random(1)
    scene = Scene(jvms, tmp_path / "ckpt", format_=2)
    for _ in range(5):
        scene.batch(rng)
    scene.follow()
    scene.batch(rng)
    before = scene.restores()
    assert before > 0
    scene.taken_over().close()
    assert scene.restores() == before
    scene.told([])


def test_a_follower_knows_the_snapshots_that_the_writer_makes(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    rng = random.Random(1)
    scene = Scene(jvms, tmp_path / "ckpt", format_=2)
    scene.batch(rng)
    scene.follow()
    for _ in range(3):
        scene.batch(rng)
    scene.writer.store(*scene.at).abort()  # proves it committed
    before_ms = time.time() * 1000
    scene.writer.snapshot()
    made = scene.at[0]
    scene.batch(rng)  # its changelog names the snapshot
    scene.follow()
    taken = scene.taken_over()
    (shown,) = [
        store
        for store in jvms[1].report()["stores"]
        if (store["run_id"], store["partition"]) == (scene.run_id, FOLLOWED)
    ]
    assert shown["snapshot_version"] == made and shown["behind"] == 1
    assert shown["snapshot_ms"] >= before_ms and shown["behind_since_ms"] >= before_ms
    taken.close()
    scene.told([])


def test_a_take_over_that_fails_gives_back_its_memory(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    """Else another store, which has the backend heap, is refused its rows."""
    budget = {"millpond.memory.budget": "1m"}
    scene = Scene(jvms, tmp_path / "ckpt", format_=2, conf=budget)

    def write(provider: Provider, version: int, id: str | None, rows: int) -> Point:
        store = provider.store(version, id)
        store.put_many([(["a", n], ["x" * 100]) for n in range(rows)])
        done = store.commit()
        return done.version, done.id

    scene.at = write(scene.writer, 0, None, 3000)
    scene.follow()
    scene.at = write(scene.writer, *scene.at, 3001)
    taken = scene.provider(1)
    jvms[1].arm("load.replay", kind="STORAGE_UNAVAILABLE", first=1, last=1_000_000)
    with pytest.raises(ProviderError, match="a fault of the test"):
        taken.read_store(*scene.at)
    assert jvms[1].disarm() == 1, "it catches up, and is not loaded"
    neighbour = open_provider(
        jvms[1],
        tmp_path / "other",
        schema=SCHEMA,
        operator="stateStoreSave",
        conf={"checkpointFormatVersion": 2, "millpond.backend": "heap", **budget},
    )
    assert write(neighbour, 0, None, 3500)[0] == 1
    neighbour.close()
    read = taken.read_store(*scene.at)
    assert len(read.scan()) == 3001
    read.release()
    taken.close()
    scene.told([])


def test_a_task_that_is_killed_in_a_take_over_asks_no_more(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    """Else it keeps the store from the next attempt as long as the storage is slow."""
    held, asked, answered = threading.Event(), threading.Event(), threading.Event()

    def gate(request: Request) -> None:
        if held.is_set() and request.operation == "GET" and request.path.endswith(".changelog"):
            asked.set()
            assert answered.wait(60)

    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "metadata").write_text('{"id":"the-query"}')
    with s3_server() as server, server.faults(gate):
        conf = {
            "millpond.storage.uri": f"s3://{server.bucket()}/states",
            "millpond.storage.s3.endpoint": server.endpoint,
            "millpond.agent.callTimeoutMs": "4000",
        }
        scene = Scene(jvms, tmp_path / "ckpt", format_=2, conf=conf, hadoop=HADOOP)
        rng = random.Random(8)
        scene.batch(rng)
        scene.follow()
        scene.batch(rng)
        taken, (version, id) = scene.provider(1), scene.at
        held.set()
        attempt = jvms[1].begin(
            "get_read_store", p=taken.name, s="killed", version=version, id=id, task="killed"
        )
        assert asked.wait(60)
        jvms[1].kill_task("killed")
        with pytest.raises(ProviderError, match="TaskKilledException"):
            jvms[1].join(attempt)
        assert not answered.is_set()
        jvms[1].end_task("killed")
        held.clear()
        answered.set()
        read = taken.read_store(*scene.at)
        scene.check(read)
        read.release()
        taken.close()
        scene.told([])
        scene.writer.close()


def folders(harness: Harness) -> list[str]:
    """Return the local folders of the followed store."""
    return [p.name for p in harness.local_dir.glob(f"millpond-*/0-{FOLLOWED}-default-*")]


def test_a_key_in_the_wrong_place_is_known_after_a_take_over(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    """A rescale asks the newest version whether each row lies where its key belongs."""
    scene = Scene(jvms, tmp_path / "ckpt", format_=2)
    keys: list[Row] = [["a", n] for n in range(40)]
    places = jvms[0].partitions_of(keys, key_schema=SCHEMA.key, partitions=PARTITIONS)
    own = keys[places.index(FOLLOWED)]
    foreign = next(key for key, place in zip(keys, places, strict=True) if place != FOLLOWED)

    def put(provider: Provider, key: Row) -> bool:
        """Put a key, and commit. Return whether the new version can be rescaled."""
        store = provider.store(*scene.at)
        store.put(key, [f"of {scene.at[0]}"])
        done = store.commit()
        scene.at = (done.version, done.id)
        folder = tmp_path / "ckpt" / "state" / "0" / str(FOLLOWED)
        with (folder / f"{done.version}_{done.id}.changelog").open("rb") as file:
            return read_header(file, name=file.name).key_groups.scalable

    assert put(scene.writer, own)
    scene.follow()
    before = scene.restores()
    assert not put(scene.writer, foreign)
    scene.follow()
    taken = scene.provider(1)
    assert not put(taken, own)
    assert scene.restores() == before
    taken.close()
    scene.told([])


def test_a_take_over_leaves_no_folder(jvms: tuple[Harness, Harness], tmp_path: Path) -> None:
    """The provider goes on with the folder of the follower, and needs none of its own."""
    scene = Scene(jvms, tmp_path / "ckpt", format_=2)
    scene.batch(random.Random(4))
    scene.follow()
    before = folders(jvms[1])
    taken = scene.taken_over()
    assert folders(jvms[1]) == before
    taken.close()
    scene.told([])
    assert folders(jvms[1]) == []


def test_a_provider_that_cannot_begin_leaves_nothing(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    """Spark does not close it. So it must not have taken the follower."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "metadata").write_text('{"id":"the-query"}')
    place = {"millpond.storage.uri": f"file:{tmp_path}/states"}
    scene = Scene(jvms, tmp_path / "ckpt", format_=2, conf=place)
    scene.batch(random.Random(5))
    scene.follow()
    before = folders(jvms[1])
    folder = tmp_path / "ckpt" / "state" / "0" / str(FOLLOWED)
    folder.rmdir()
    folder.write_text("no folder")
    with pytest.raises(ProviderError):
        scene.provider(1)
    assert folders(jvms[1]) == before
    assert scene.followed() == 1
    folder.unlink()
    scene.taken_over().close()
    scene.told([])
    assert folders(jvms[1]) == []


def test_a_store_that_finds_no_place_does_not_keep_others_from_being_followed(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    scene = Scene(jvms, tmp_path / "ckpt", format_=2)
    scene.batch(random.Random(6))
    other = scene.provider(0, partition=FOLLOWED - 1)
    done = other.store(0).commit()
    (lock,) = jvms[1].local_dir.glob("millpond-*/owner.lock")
    # Each name that the folder of the first store could have.
    taken = [lock.parent / f"0-{FOLLOWED}-default-{n}" for n in range(1, 1000)]
    taken = [folder for folder in taken if not folder.exists()]
    for folder in taken:
        folder.mkdir()
    of_other = scene.wanted(done.version, done.id) | {"partition": FOLLOWED - 1}
    scene.told([scene.wanted(*scene.at), of_other])
    wait_until(
        lambda: jvms[1].call("followed", partition=FOLLOWED - 1) == done.version,
        seconds=30,
        what="the other store",
    )
    assert scene.followed() == -1
    for folder in taken:
        folder.rmdir()
    other.close()
    scene.told([])


@pytest.mark.deep
def test_a_store_that_was_followed_again_is_left_alone_no_longer_than_at_first(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    """Each failure in a row doubles the pause, which tests have at a fifth of a second. So the
    seventh would take more than twelve seconds.
    """
    scene = Scene(jvms, tmp_path / "ckpt", format_=2)
    rng = random.Random(7)

    def led() -> bool:
        """Tell it what to follow, as the driver does again and again."""
        scene.told([scene.wanted(*scene.at)])
        return scene.followed() == scene.at[0]

    scene.batch(rng)
    wait_until(led, seconds=30, what="the follower")
    for _ in range(7):
        jvms[1].arm("follow.answered", kind="STORAGE_UNAVAILABLE")
        scene.batch(rng)
        scene.told([scene.wanted(*scene.at)])
        wait_until(lambda: scene.followed() == -1, seconds=30, what="the failure")
        wait_until(led, seconds=8, what="the store to be followed again")
        time.sleep(0.4)
        scene.batch(rng)
        wait_until(led, seconds=8, what="the next version")
    jvms[1].disarm()
    scene.taken_over().close()
    scene.told([])


def test_what_nobody_wants_any_more_is_dropped(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    rng = random.Random(2)
    scene = Scene(jvms, tmp_path / "ckpt", format_=1)
    scene.batch(rng)
    scene.follow()
    scene.told([])
    wait_until(lambda: scene.followed() == -1, seconds=30, what="the follower to end")
    # Nothing is known of this operator there: it cannot be followed, and that is no failure.
    scene.run_id = str(uuid.uuid4())
    scene.told([scene.wanted(1)])
    scene.batch(rng)
    scene.taken_over().close()


def test_a_store_that_was_taken_over_and_left_is_followed_again(
    jvms: tuple[Harness, Harness], tmp_path: Path
) -> None:
    rng = random.Random(3)
    scene = Scene(jvms, tmp_path / "ckpt", format_=2)
    scene.batch(rng)
    scene.follow()
    taken = scene.taken_over()
    scene.batch(rng, taken)
    taken.close()
    scene.writer.close()
    scene.writer = scene.provider(0)
    scene.batch(rng)
    scene.follow()
    scene.taken_over().close()
    scene.told([])
