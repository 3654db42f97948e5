"""Single store methods, by the harness: open iterators while rows change, limits of change feed and
replay, check sums.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from integration.harness import Harness, ProviderError, Row, Schema
from integration.processes import wait_until
from integration.store_cases import FAMILIES, PLAIN, open_provider, write

VALUE = ["v"]
UNSUPPORTED = "STATE_STORE_UNSUPPORTED_OPERATION"


def test_a_state_that_begins_anew_leaves_what_was_there_before(
    harness: Harness, tmp_path: Path
) -> None:
    """With `loadEmpty` no snapshot says that the version below was empty.

    This holds for snapshots in mid-batch, forced by the commit, or later.
    """
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    for version in range(2):
        store = provider.store(version)
        store.put(["old", version], VALUE)
        store.commit()
    provider.close()
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    store = provider.store(2, load_empty=True, force_snapshot=True)
    store.put(["new", 2], VALUE)
    provider.snapshot()
    assert store.commit().version == 3
    provider.snapshot()
    assert not list((tmp_path / "state").rglob("2*.manifest"))
    provider.close()
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    before = provider.read_store(2)
    assert sorted(before.scan()) == [(["old", 0], VALUE), (["old", 1], VALUE)]
    before.release()
    after = provider.store(3)
    assert after.scan() == [(["new", 2], VALUE)]
    after.abort()
    provider.snapshot()
    assert list((tmp_path / "state").rglob("3*.manifest"))
    provider.close()
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    assert provider.store(3).scan() == [(["new", 2], VALUE)]
    provider.close()


def test_a_state_that_begins_anew_is_not_what_others_read(harness: Harness, tmp_path: Path) -> None:
    """The provider has it empty in memory, at the version of the rows of before, until a batch is
    committed on it, and also then: Spark may go back.
    """
    old = [(["old", version], VALUE) for version in range(2)]
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    for version in range(2):
        store = provider.store(version)
        store.put(["old", version], VALUE)
        store.commit()
    provider.store(2, load_empty=True).abort()
    read = provider.read_store(2)
    assert sorted(read.scan()) == old
    read.abort()
    store = provider.store(2, load_empty=True)
    store.put(["new", 2], VALUE)
    assert store.commit().version == 3
    store = provider.store(2)
    assert sorted(store.scan()) == old
    store.abort()
    assert provider.store(3).scan() == [(["new", 2], VALUE)]
    provider.close()


def test_a_commit_does_not_wait_for_the_snapshot_that_spark_asks_for(
    harness: Harness, tmp_path: Path
) -> None:
    """Spark asks if it knows of none for many versions. A large state takes many seconds."""
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    harness.hold("snapshot.checkpoint")
    for version in range(3):
        store = provider.store(version, force_snapshot=True)
        store.put(["k", version], VALUE)
        assert store.commit().version == version + 1
    wait_until(harness.is_holding, seconds=30, what="a snapshot")
    assert harness.holds().startswith("snapshot ")
    harness.let_go()
    provider.snapshot()  # maintenance makes it, or waits for the one that is being made
    assert list((tmp_path / "state").rglob("*.manifest"))
    provider.close()


# ---- iterators -----------------------------------------------------------------------------------

SCANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lists": {"multi": True},
    "prefix": {"scan": "prefix", "k": ["a"]},
    "range": {"scan": "range", "from": [1, ""], "to": [50, ""]},
    "times": {"scan": "prefix", "k": ["a"], "multi": True},
}


def _key(family: str, i: int) -> Row:
    return [i, "a"] if family == "range" else ["a", i]


@pytest.mark.parametrize("conf", [{}, {"millpond.memory.budget": "1m"}], ids=["in-memory", "1m"])
@pytest.mark.parametrize("family", list(SCANS))
@pytest.mark.parametrize("change", ["remove", "put", "merge"])
def test_iterators_yield_what_was_there_when_they_were_opened(
    harness: Harness, tmp_path: Path, family: str, change: str, conf: dict[str, Any]
) -> None:
    """Meanwhile the test changes rows ahead, behind and at the iterator, and adds rows between."""
    multi = FAMILIES[family].multi
    if change == "merge" and not multi:
        pytest.skip("only keys with several values can be appended to")
    provider = open_provider(harness, tmp_path, conf=conf)
    store = write(provider, 0)
    for i in range(2, 40, 2):
        if multi:
            store.put_list(_key(family, i), [[f"{i}"], ["w" * 20_000]], cf=family)
        else:
            store.put(_key(family, i), [f"{i}" + "w" * 30_000], cf=family)
    store.commit()
    if conf:  # reads then come from the disk tier
        provider.snapshot()
        provider.close()
        provider = open_provider(harness, tmp_path, conf=conf)
    store = write(provider, 1)
    expected = store.scan(cf=family, **SCANS[family])
    assert len(expected) == 19 * (2 if multi else 1)
    cursor = store.iterate(cf=family, **SCANS[family])
    seen = []
    for step in range(19 * (2 if multi else 1)):
        seen += cursor.next()
        for i in {(step * 7) % 42, (step * 5 + 2) % 42, seen[-1][0][0 if family == "range" else 1]}:
            key = _key(family, i)
            if change == "remove":
                store.remove(key, cf=family)
            elif change == "put":
                store.put(key, [f"changed {step}"], cf=family)
            else:
                store.merge(key, [f"changed {step}"], cf=family)
    assert cursor.next() == []
    assert (
        seen == expected
        if family != "lists" and family != "plain"
        else sorted(map(str, seen)) == sorted(map(str, expected))
    )
    cursor.close()
    store.commit()
    provider.close()


@pytest.mark.parametrize("conf", [{}, {"millpond.memory.budget": "1m"}], ids=["in-memory", "1m"])
def test_a_list_is_read_to_its_end_while_it_is_replaced(
    harness: Harness, tmp_path: Path, conf: dict[str, Any]
) -> None:
    """Like TTL: read the values, clear the key, write the live values back."""
    provider = open_provider(harness, tmp_path, conf=conf)
    store = write(provider, 0)
    for n in range(6):
        store.put_list(["a", n], [[f"{n}-{i}" + "w" * 50_000] for i in range(6)], cf="lists")
    store.commit()
    if conf:
        provider.snapshot()
        provider.close()
        provider = open_provider(harness, tmp_path, conf=conf)
    store = write(provider, 1)
    for n in range(6):
        key = ["a", n]
        before = store.values(key, cf="lists")
        cursor = store.iterate(scan="values", k=key, cf="lists")
        seen = cursor.next()
        store.remove(key, cf="lists")
        for i in range(1, 6):
            seen += cursor.next()
            if n % 2:
                store.merge(key, seen[-1][1], cf="lists")
            elif i == 1:
                store.put(key, seen[-1][1], cf="lists")
            store.put(["b", i], ["other"], cf="lists")
        assert [v for _, v in seen] == before and cursor.next() == []
        assert store.values(key, cf="lists") == (before[1:] if n % 2 else before[1:2])
    store.abort()
    provider.close()


# ---- change feed and replay ----------------------------------------------------------------------


def test_changes_tell_that_another_attempt_replaced_a_file(
    harness: Harness, tmp_path: Path
) -> None:
    """In Spark checkpoint format 1 the last attempt owns the file. It is no damaged one."""
    conf = {"checkpointFormatVersion": 1}
    one, other = (
        open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe", conf=conf)
        for _ in range(2)
    )
    for version in range(2):
        store = one.store(version)
        store.put(["a", version], VALUE)
        store.commit()
    again = other.store(1)
    again.put(["a", 9], VALUE)
    harness.meanwhile("changelog.read", [{"do": "commit", "s": again.name}])
    with pytest.raises(ProviderError, match="MILLPOND_CHANGELOG_REPLACED"):
        one.changes(1, 2)
    (done,) = harness.happened()
    assert not isinstance(done, ProviderError), done
    assert one.changes(1, 2) == [("update", ["a", 0], VALUE, 0), ("update", ["a", 9], VALUE, 1)]
    one.close()
    other.close()


def test_changes_and_replay_tell_what_is_not_there_any_more(
    harness: Harness, tmp_path: Path
) -> None:
    provider = open_provider(harness, tmp_path, schema=PLAIN, operator="dedupe")
    for version in range(9):
        store = provider.store(version)
        store.put(["a", version], [f"{version}"])
        store.commit()
        provider.snapshot()
        provider.cleanup()
    assert provider.changes(9, 9) == [("update", ["a", 8], ["8"], 8)]
    with pytest.raises(ProviderError, match=r"MILLPOND_VERSION_EXPIRED") as caught:
        provider.changes(2, 9)
    assert "changes are kept from version" in caught.value.text and "Hint: " in caught.value.text
    with pytest.raises(ProviderError, match=r"MILLPOND_VERSION_NOT_FOUND.*the newest version is 9"):
        provider.changes(9, 12)
    with pytest.raises(ProviderError, match=r"MILLPOND_VERSION_NOT_FOUND.*no snapshot"):
        provider.replay(2, 9)
    for start, end in ((0, 3), (5, 4)):
        with pytest.raises(ProviderError) as caught:
            provider.changes(start, end)
        assert caught.value.condition == "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION"
    read_only = provider.replay(8, 9, read=False)
    assert len(read_only.scan()) == 9
    with pytest.raises(ProviderError) as caught:
        read_only.put(["b", 1], ["no"])
    assert caught.value.condition == UNSUPPORTED
    read_only.release()
    (tmp_path / "state" / "0" / "0" / "9.changelog").unlink()
    with pytest.raises(ProviderError, match=r"MILLPOND_(CHANGELOG_MISSING|VERSION_NOT_FOUND)"):
        provider.changes(9, 9)
    provider.close()


@pytest.mark.parametrize("new", [True, False], ids=["new", "known"])
def test_what_only_was_appended_is_an_append(harness: Harness, tmp_path: Path, new: bool) -> None:
    """To a list that was there, and to one that the batch makes. A put, or a remove, is none."""
    provider = open_provider(harness, tmp_path)
    store = write(provider, 0)
    keys: dict[str, list[Any]] = {name: [name, 0] for name in ("appended", "put", "removed")}
    for key in [["other", 0], *([] if new else keys.values())]:
        store.put_list(key, [["before"]], cf="lists")
    store.commit()
    store = write(provider, 1)
    store.put(keys["put"], ["1"], cf="lists")
    store.remove(keys["removed"], cf="lists")
    for key in keys.values():
        store.merge(key, ["2"], cf="lists")
        store.merge_list(key, [["3"], ["4" * 1000]], cf="lists")
    store.commit()
    changes = provider.changes(2, 2, cf="lists")
    for name, key in keys.items():
        found = [(kind, (value or [""])[0][:1]) for kind, k, value, _ in changes if k == key]
        first = [("append", "2")] if name == "appended" or (new and name == "removed") else []
        if name == "put":
            first = [("update", "1"), ("append", "2")]
        elif not first:
            first = [("update", "2")]
        assert found == [*first, ("append", "3"), ("append", "4")], name
    provider.close()
    provider = open_provider(harness, tmp_path)
    store = write(provider, 2)
    for name, key in keys.items():
        before = [["before"]] if name == "appended" and not new else []
        before += [["1"]] if name == "put" else []
        assert store.values(key, cf="lists") == [*before, ["2"], ["3"], ["4" * 1000]]
    store.abort()
    provider.close()


# ---- checksums -----------------------------------------------------------------------------------


def test_with_row_checksums_asked_for_no_flipped_bit_goes_unnoticed(
    harness: Harness, tmp_path: Path
) -> None:
    """Spark's row checksums are on. Millpond's sums of blocks find any damage to stored rows."""
    conf = {
        "rowChecksum.enabled": True,
        "rowChecksum.readVerificationRatio": 1,
        "millpond.restore.verifyChecksums": True,
    }
    origin = tmp_path / "origin"
    provider = open_provider(harness, origin, schema=PLAIN, operator="dedupe", conf=conf)
    for version in range(2):
        store = provider.store(version)
        store.put_many([(["k", i], [f"{version} {i}"]) for i in range(50)])
        store.commit()
    provider.store(2).abort()  # proves version 2
    provider.snapshot()
    store = provider.store(2)
    store.put(["k", 3], ["changed"])
    store.commit()
    provider.close()
    folder = Path("state", "0", "0")
    changelog = folder / "3.changelog"
    (sst,) = (path.relative_to(origin) for path in (origin / folder / "sst").iterdir())
    chance = random.Random(7)
    for number, name in enumerate([changelog] * 6 + [sst] * 6):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(origin, copy)
        data = bytearray((copy / name).read_bytes())
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        (copy / name).write_bytes(data)
        if name == sst:  # without older snapshots or changelogs, the state must come from the SST
            for old in (1, 2):
                (copy / folder / f"{old}.changelog").unlink(missing_ok=True)
        provider = open_provider(harness, copy, schema=PLAIN, operator="dedupe", conf=conf)
        with pytest.raises(
            ProviderError,
            match=r"MILLPOND_(CHANGELOG|SST)_(DAMAGED|MISSING)|MILLPOND_FORMAT_TOO_NEW",
        ):
            read = provider.read_store(3)
            read.scan()
        provider.close()
    provider = open_provider(harness, origin, schema=PLAIN, operator="dedupe", conf=conf)
    assert sorted(provider.read_store(3).scan()) == sorted(
        [(["k", i], ["changed" if i == 3 else f"1 {i}"]) for i in range(50)]
    )
    provider.close()


def test_a_range_has_all_rows_between_two_keys(harness: Harness, tmp_path: Path) -> None:
    """Keys lie by their key groups on disk. Those between two keys of one group are of any group.

    Some rows are on disk, some were written since, some are gone.
    """
    by_time = {"type": "ts_postfix"}
    schema = Schema("f string, __event_time bigint not null", "v string", by_time, multi=True)
    cf = {"cf": "left-keyWithTsToValues"}
    conf = {"millpond.maxParallelism": 8, "millpond.restore.warmUp": False}
    provider = open_provider(harness, tmp_path, operator="symmetricHashJoin", conf=conf)
    rows = {f"{i:03}": "old" for i in range(60)}
    store = write(provider, 0, {cf["cf"]: schema})
    for name in rows:
        store.put_list([name, 1], [["old"]], **cf)
    store.commit()
    provider.store(1).abort()  # proves the commit
    provider.snapshot()
    provider.close()
    provider = open_provider(harness, tmp_path, operator="symmetricHashJoin", conf=conf)
    store = write(provider, 1, {cf["cf"]: schema})
    for i in (7, 20, 33):
        store.put_list([f"{i:03}", 1], [["new"]], **cf)
        rows[f"{i:03}"] = "new"
        store.remove([f"{i + 5:03}", 1], **cf)
        del rows[f"{i + 5:03}"]
    for start in range(0, 60, 4):
        for end in range(start, 60):
            bounds = {"from": [f"{start:03}", 1], "to": [f"{end:03}", 1]}
            found = store.scan(scan="range", multi=True, **bounds, **cf)
            wanted = [([k, 1], [v]) for k, v in rows.items() if f"{start:03}" <= k < f"{end:03}"]
            assert sorted(found) == wanted, f"from {start} until {end}"
    assert store.scan(scan="range", multi=True, **{"from": ["007", 1], "to": ["007", 2]}, **cf) == [
        (["007", 1], ["new"])
    ]
    store.abort()
    provider.close()
