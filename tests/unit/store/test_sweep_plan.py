"""Which SSTs and staging files a sweep deletes: the pure part."""

from __future__ import annotations

from millpond.storage import ObjectInfo
from millpond.store.collection.plan import plan_sweep

GRACE = 1000


def sst(key: str, modified_ms: int = 0) -> ObjectInfo:
    return ObjectInfo(key, 10, modified_ms)


def test_an_sst_goes_only_after_it_was_seen_unreferenced_for_the_grace_period() -> None:
    first = plan_sweep([sst("a"), sst("b")], [], {"b"}, {}, grace_ms=GRACE, now_ms=5000)
    assert first.doomed == () and first.candidates == {"a": 5000}
    early = plan_sweep(
        [sst("a"), sst("b")], [], {"b"}, first.candidates, grace_ms=GRACE, now_ms=5999
    )
    assert early.doomed == () and early.candidates == {"a": 5000}
    due = plan_sweep([sst("a"), sst("b")], [], {"b"}, early.candidates, grace_ms=GRACE, now_ms=6000)
    assert [info.key for info in due.doomed] == ["a"] and due.candidates == {}


def test_an_sst_whose_manifests_have_expired_goes_at_once() -> None:
    ssts = [sst("expired"), sst("named too"), sst("upload in flight")]
    sweep = plan_sweep(
        ssts,
        [],
        {"named too"},
        {},
        released={"expired", "named too"},
        grace_ms=GRACE,
        now_ms=5000,
    )
    assert [info.key for info in sweep.doomed] == ["expired"]
    assert sweep.candidates == {"upload in flight": 5000}


def test_an_sst_of_a_manifest_that_was_taken_back_waits() -> None:
    young = sst("a", modified_ms=8500)
    sweep = plan_sweep([young], [], set(), {}, released={"a"}, grace_ms=GRACE, now_ms=9000)
    assert sweep.doomed == () and sweep.candidates == {"a": 9000}


def test_an_sst_that_is_named_again_starts_anew() -> None:
    named = plan_sweep([sst("a")], [], {"a"}, {"a": 5000}, grace_ms=GRACE, now_ms=9000)
    assert named.doomed == () and named.candidates == {}


def test_a_young_sst_stays_whatever_was_recorded() -> None:
    sweep = plan_sweep(
        [sst("a", modified_ms=8500)], [], set(), {"a": 0}, grace_ms=GRACE, now_ms=9000
    )
    assert sweep.doomed == () and sweep.candidates == {"a": 0}


def test_a_clock_that_was_set_back_makes_nothing_older() -> None:
    sweep = plan_sweep([sst("a")], [], set(), {"a": 9_000_000}, grace_ms=GRACE, now_ms=9000)
    assert sweep.doomed == () and sweep.candidates == {"a": 9000}


def test_staging_files_go_by_age() -> None:
    sweep = plan_sweep(
        [], [sst("old", 0), sst("young", 39_000)], set(), {}, grace_ms=GRACE, now_ms=90_000
    )
    assert [info.key for info in sweep.doomed] == ["old"]


def test_a_commit_in_flight_is_not_swept_however_short_the_grace_period() -> None:
    sweep = plan_sweep([], [sst("in flight", 89_000)], set(), {}, grace_ms=0, now_ms=90_000)
    assert sweep.doomed == ()


def test_a_batch_that_waits_for_rows_is_not_swept_between_two_maintenances() -> None:
    """Maintenance keeps the staging file of a running batch young."""
    minute = 60_000
    left = sst("killed", -39 * minute)
    sweep = plan_sweep(
        [],
        [sst("waits", -5 * minute), left],
        set(),
        {},
        grace_ms=10 * minute,
        maintenance_ms=15 * minute,
        now_ms=6 * minute,
    )
    assert sweep.doomed == (left,)
    assert sweep.still_doomed(4 * minute) == (), "by the storage's clock it is younger"


def test_candidates_that_are_gone_are_forgotten() -> None:
    assert plan_sweep([], [], set(), {"a": 1}, grace_ms=GRACE, now_ms=9000).candidates == {}
