"""Calls that take long.

The agent answers them in time, or the shim asks again, or the shim abandons them. If an agent
starts in mid-call, it goes on from what the call left.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.agent.pending import AbandonedError, PendingCalls, check_wanted
from millpond.agent.service import AgentService
from millpond.storage import Storage
from millpond.storage.memory import MemoryStorage
from tests.agent_driver import Provider

SOON_S = 0.0
LONG_S = 30.0


class Clock:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Work:
    """Work that lasts until the test releases it."""

    def __init__(self, answer: str = "answer") -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.runs = 0
        self._answer = answer
        self.checks: list[Callable[[], None]] = []

    def __call__(self) -> str:
        self.runs += 1
        self.checks.append(check_wanted())
        self.begun.set()
        assert self.release.wait(LONG_S)
        check_wanted()()
        return self._answer


def test_what_is_done_in_time_is_one_call() -> None:
    calls, work = PendingCalls(), Work()
    work.release.set()
    assert calls.answer("1", LONG_S, work) == "answer" and work.runs == 1


def test_asked_again_the_same_work_goes_on() -> None:
    calls, work = PendingCalls(), Work()
    assert calls.answer("1", SOON_S, work) is None
    assert calls.answer("1", SOON_S, work) is None
    work.release.set()
    assert calls.answer("1", LONG_S, work) == "answer"
    assert calls.answer("1", LONG_S, work) == "answer", (
        "the agent gives an answer again that was lost on its way"
    )
    assert work.runs == 1


def test_a_slow_call_holds_up_no_other() -> None:
    calls, slow, quick = PendingCalls(), Work(), Work("quick")
    quick.release.set()
    assert calls.answer("1", SOON_S, slow) is None
    assert calls.answer("2", LONG_S, quick) == "quick"
    slow.release.set()


def test_two_ask_at_the_same_time() -> None:
    calls, work = PendingCalls(), Work()
    answers: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: answers.append(calls.answer("1", LONG_S, work)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    assert work.begun.wait(LONG_S)
    work.release.set()
    for thread in threads:
        thread.join(LONG_S)
    assert answers == ["answer"] * 8 and work.runs == 1


def test_answers_are_forgotten_in_time() -> None:
    clock = Clock()
    calls, work = PendingCalls(clock), Work()
    work.release.set()
    for second in range(0, 1000, 10):
        clock.now_s = second
        assert calls.answer(str(second), LONG_S, work) == "answer"
        assert len(calls._calls) <= 8
    assert calls.answer("0", LONG_S, work) == "answer" and work.runs == 101


def test_work_that_nobody_asks_for_ends_and_is_begun_anew() -> None:
    clock = Clock()
    calls, work = PendingCalls(clock), Work()
    assert calls.answer("1", SOON_S, work) is None
    assert work.begun.wait(LONG_S)
    clock.now_s = 20.0
    work.checks[0]()  # another thread may check too
    assert calls.answer("1", SOON_S, work) is None
    clock.now_s = 45.0
    work.checks[0]()
    clock.now_s = 51.0
    with pytest.raises(AbandonedError):
        work.checks[0]()
    again = Work("again")
    again.release.set()
    assert calls.answer("1", LONG_S, again) == "again"
    work.release.set()


def test_a_thread_that_works_for_no_call_is_always_wanted() -> None:
    check_wanted()()


# ---- the service


class Gated(MemoryStorage):
    """A storage that is slow.

    Files whose key ends with `held` move when `release` is set. `moved` names those that did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = ""
        self.release = threading.Event()
        self.waiting = threading.Event()
        self.moved: list[str] = []
        self.most = 10**9  # so many files move before the storage fails

    def _gate(self, key: str) -> None:
        if self.held and key.endswith(self.held):
            self.waiting.set()
            assert self.release.wait(LONG_S)
            if len(self.moved) >= self.most:
                raise KilledError
            self.moved.append(key)

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        self._gate(key)
        super().get_to_file(key, local_path, link=link)

    def put_file(self, key: str, path: str, *, if_absent: bool = False, link: bool = False) -> None:
        self._gate(key)
        super().put_file(key, path, if_absent=if_absent, link=link)


class KilledError(Exception):
    """The agent dies here."""


@pytest.fixture
def storage() -> Gated:
    return Gated()


@pytest.fixture
def service(storage: Gated) -> AgentService:
    return AgentService(opener=lambda uri, settings: storage)


def provider(service: AgentService, storage: Storage, tmp_path: Path, **arguments: Any) -> Provider:
    made = Provider(service, tmp_path / "ckpt", tmp_path / "local", **arguments)
    made.storage = storage
    return made


class Asking:
    """A service whose client does not wait.

    It answers `pending`, or with the answer of the call.
    """

    def __init__(self, service: AgentService, ticket: str, wait_ms: int) -> None:
        self.service, self.ticket, self.wait_ms = service, ticket, wait_ms
        self.asked: list[tuple[str, str]] = []

    def handle(self, method: str, request: str) -> str:
        with_ticket = json.dumps(
            {**json.loads(request), "ticket": self.ticket, "wait_ms": self.wait_ms}
        )
        self.asked.append((method, with_ticket))
        return self.service.handle(method, with_ticket)

    def again(self, wait_ms: int = 30_000) -> dict[str, Any]:
        method, request = self.asked[-1]
        answer: dict[str, Any] = json.loads(
            self.service.handle(method, json.dumps({**json.loads(request), "wait_ms": wait_ms}))
        )
        return answer


def five_ssts(service: AgentService, storage: Gated, tmp_path: Path) -> Provider:
    made = provider(service, storage, tmp_path)
    made.open(0)
    for _ in range(5):
        made.commit()
        made.flush()
    return made


def next_commit(writer: Provider) -> None:
    """Commit a version that names the snapshot of the version before it.

    A restore that lists nothing finds that snapshot.
    """
    writer.lineage = writer.lineage[writer.version - writer.lineage_base :]
    writer.lineage_base = writer.version
    writer.commit()


def test_a_long_snapshot_and_a_long_restore_are_asked_for_again(
    service: AgentService, storage: Gated, tmp_path: Path
) -> None:
    writer = five_ssts(service, storage, tmp_path / "a")
    quick = provider(service, storage, tmp_path / "b", partition=1)
    storage.held = ".sst"
    writer.service = asking = Asking(service, "1", 0)  # type: ignore[assignment]
    directory, files = writer.rocksdb_checkpoint()
    with pytest.raises(KeyError, match="ok"):
        writer.publish(directory, files)
    assert asking.again(0) == {"pending": True}
    assert storage.waiting.wait(LONG_S)
    quick.open(0)
    quick.commit()
    storage.release.set()
    assert asking.again()["ok"]["new_files"] == 5
    assert asking.again()["ok"]["new_files"] == 5 and len(storage.moved) == 5
    writer.service = service
    next_commit(writer)
    storage.release.clear()
    storage.waiting.clear()
    reader = provider(service, storage, tmp_path / "c")
    reader.service = asking = Asking(service, "2", 0)  # type: ignore[assignment]
    with pytest.raises(KeyError, match="ok"):
        reader.open(6)
    assert storage.waiting.wait(LONG_S)
    assert asking.again(0) == {"pending": True}
    storage.release.set()
    assert asking.again()["ok"]["db"]["version"] == 5


def test_a_call_that_fails_says_so_when_it_is_asked_again(
    service: AgentService, storage: Gated, tmp_path: Path
) -> None:
    reader = provider(service, storage, tmp_path)
    reader.service = asking = Asking(service, "1", 30_000)  # type: ignore[assignment]
    with pytest.raises(Exception, match="CHANGELOG_MISSING"):
        reader.open(7)
    assert asking.again()["error"]["kind"] == "CHANGELOG_MISSING"


def test_a_follower_that_nobody_asks_for_fetches_nothing_more(
    service: AgentService, storage: Gated, tmp_path: Path
) -> None:
    """Its task was killed. It fetched all changelogs, and kept other stores from the storage."""
    clock = Clock()
    service._pending = PendingCalls(clock)
    writer = provider(service, storage, tmp_path / "a")
    writer.open(0)
    for _ in range(5):
        writer.commit()
    storage.held = ".changelog"
    reader = provider(service, storage, tmp_path / "b")
    reader.service = Asking(service, "1", 0)  # type: ignore[assignment]
    with pytest.raises(KeyError, match="ok"):
        reader.followed(1, 5)
    assert storage.waiting.wait(LONG_S)
    (call,) = [thread for thread in threading.enumerate() if thread.name == "millpond-call-1"]
    clock.now_s = 31.0
    storage.release.set()
    call.join(LONG_S)
    assert not call.is_alive() and len(storage.moved) == 1


@pytest.mark.parametrize(
    "request_", [{"ticket": 1}, {"ticket": "1", "wait_ms": "2"}, {"ticket": "1", "wait_ms": True}]
)
def test_a_bad_ticket_is_an_error_answer(service: AgentService, request_: dict[str, Any]) -> None:
    error = json.loads(service.handle("open", json.dumps(request_)))["error"]
    assert error["kind"] == "INVALID_ARGUMENT" and "ticket" in error["message"]


def test_ping_with_a_ticket_is_answered_at_once(service: AgentService) -> None:
    assert "pid" in json.loads(service.handle("ping", '{"ticket": "1", "wait_ms": 0}'))["ok"]


# ---- an agent that is started in mid-call


def cut_short(service: AgentService, storage: Gated, asked: Callable[[], object]) -> None:
    """Make a call with a storage that moves three files more and then fails.

    No caller foresees how it fails.
    """
    storage.held, storage.most = ".sst", len(storage.moved) + 3
    storage.release.set()
    with pytest.raises(Exception, match="KilledError"):
        asked()
    storage.most = 10**9


def test_a_restore_goes_on_with_the_files_it_has(
    service: AgentService, storage: Gated, tmp_path: Path
) -> None:
    writer = five_ssts(service, storage, tmp_path / "a")
    writer.snapshot()
    next_commit(writer)
    reader = provider(service, storage, tmp_path / "b")
    cut_short(service, storage, lambda: reader.open(6))
    fetched = list(storage.moved)
    reader.service = AgentService(opener=lambda uri, settings: storage)
    reader.generation -= 1  # the same call once more
    assert reader.open(6) == writer.state
    assert (
        sorted(storage.moved) == sorted(set(storage.moved))
        and len(storage.moved) == 5
        and len(fetched) == 3
    )
    reader.generation -= 1  # the same call, because its answer was lost
    assert reader.open(6) == writer.state
    assert len(storage.moved) == 5


def test_of_a_restore_that_was_cut_short_only_whole_files_are_kept(
    service: AgentService, storage: Gated, tmp_path: Path
) -> None:
    writer = five_ssts(service, storage, tmp_path / "a")
    writer.snapshot()
    next_commit(writer)
    reader = provider(service, storage, tmp_path / "b")
    cut_short(service, storage, lambda: reader.open(6))
    unfinished = Path(f"{reader.db_dir}.unfinished")
    flipped, shorter, whole = sorted(unfinished.glob("*.sst"))
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
    shorter.write_bytes(shorter.read_bytes()[:-1])
    (unfinished / ".staging-0123").write_text("half a file")
    (unfinished / "000099.sst").write_text("of another snapshot")
    (unfinished / "folder").mkdir()
    (unfinished / "CURRENT").write_text("MANIFEST-9")
    inode = whole.stat().st_ino
    reader.generation -= 1
    assert reader.open(6) == writer.state
    assert len(storage.moved) == 7 and (reader.db_dir / whole.name).stat().st_ino == inode


def test_a_snapshot_goes_on_with_what_is_uploaded(
    service: AgentService, storage: Gated, tmp_path: Path
) -> None:
    writer = five_ssts(service, storage, tmp_path / "a")
    directory, files = writer.rocksdb_checkpoint()
    cut_short(service, storage, lambda: writer.publish(directory, files))
    log = writer.generation_dir / "uploads.jsonl"
    log.write_bytes(log.read_bytes()[:-20])  # somebody killed the agent in the middle of a line
    writer.service = AgentService(opener=lambda uri, settings: storage)
    answer = writer.publish(*writer.rocksdb_checkpoint())
    assert answer["new_files"] == 5 and len(storage.moved) == 6
    assert not log.exists()
    next_commit(writer)
    reader = provider(service, storage, tmp_path / "b")
    assert reader.open(6) == writer.state


@pytest.mark.parametrize("grace_ms", [0, 3_600_000])
def test_an_upload_that_may_be_collected_is_not_relied_on(
    storage: Gated, tmp_path: Path, grace_ms: int
) -> None:
    now_ms = [10**13]
    service = AgentService(opener=lambda uri, settings: storage, clock_ms=lambda: now_ms[0])
    writer = five_ssts(service, storage, tmp_path / "a")
    writer.options["gc.graceMs"] = str(grace_ms)
    directory, files = writer.rocksdb_checkpoint()
    cut_short(service, storage, lambda: writer.publish(directory, files))
    now_ms[0] += grace_ms // 2
    assert writer.publish(directory, files)["new_files"] == 5
    assert len(storage.moved) == 8


def test_an_upload_that_was_collected_is_made_again(
    service: AgentService, storage: Gated, tmp_path: Path
) -> None:
    writer = five_ssts(service, storage, tmp_path / "a")
    directory, files = writer.rocksdb_checkpoint()
    cut_short(service, storage, lambda: writer.publish(directory, files))
    storage.delete(storage.moved[:1])
    with pytest.raises(Exception, match="1 SSTs were collected"):
        writer.publish(directory, files)
    assert writer.publish(directory, files)["new_files"] == 5
    next_commit(writer)
    reader = provider(service, storage, tmp_path / "b")
    assert reader.open(6) == writer.state
