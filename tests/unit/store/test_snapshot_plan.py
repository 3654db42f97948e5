"""Which SSTs are new: the pure plan, and the cache that it uses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.format.manifest import SstRef
from millpond.store import local_ssts
from millpond.store.local_ssts import FileIdentity, LocalSst
from millpond.store.snapshot.plan import CheckpointSst, plan_snapshot

KEY = "sst/" + "a" * 32 + ".sst"
FILE = CheckpointSst(
    name="000012.sst",
    size_bytes=10,
    smallest_hex="00",
    largest_hex="ff",
    entries=3,
    deletions=1,
    level=0,
)
IDENTITY = FileIdentity(device=1, inode=2, mtime_ns=3, size_bytes=10)
REF = SstRef(
    key=KEY,
    local_name="000012.sst",
    size_bytes=10,
    crc32=7,
    smallest_hex="00",
    largest_hex="ff",
    entries=3,
    deletions=1,
    level=6,
)
KNOWN = {IDENTITY: LocalSst(REF, IDENTITY, "4.manifest")}
PROTECTED = {"4.manifest": {KEY}}
STORED = {KEY: 10}


def test_what_is_stored_and_named_is_named_again_as_the_checkpoint_sees_it() -> None:
    moved = replace(FILE, level=3, name="000099.sst")
    plan = plan_snapshot([moved], {moved.name: IDENTITY}, KNOWN, PROTECTED, STORED)
    assert plan.new == () and plan.reused == (replace(REF, level=3, local_name="000099.sst"),)
    assert (plan.new_bytes, plan.reused_bytes) == (0, 10)


@pytest.mark.parametrize(
    "identity",
    [
        replace(IDENTITY, inode=9),
        replace(IDENTITY, device=9),
        replace(IDENTITY, mtime_ns=9),
        replace(IDENTITY, size_bytes=9),
    ],
)
def test_a_name_proves_nothing(identity: FileIdentity) -> None:
    plan = plan_snapshot([FILE], {FILE.name: identity}, KNOWN, PROTECTED, STORED)
    assert plan.new == (FILE,) and plan.reused == () and plan.new_bytes == 10


@pytest.mark.parametrize(
    ("protected", "stored"),
    [
        ({}, STORED),
        ({"4.manifest": set()}, STORED),
        ({"5.manifest": {KEY}}, STORED),
        (PROTECTED, {}),
        (PROTECTED, {KEY: 11}),
    ],
)
def test_what_is_not_protected_or_not_there_is_new(
    protected: dict[str, set[str]], stored: dict[str, int]
) -> None:
    assert plan_snapshot([FILE], {FILE.name: IDENTITY}, KNOWN, protected, stored).new == (FILE,)


def test_the_cache_survives_and_follows_hard_links(tmp_path: Path) -> None:
    sst = tmp_path / "000012.sst"
    sst.write_bytes(b"0123456789")
    entry = LocalSst(REF, local_ssts.identify(str(sst)), "4.manifest")
    local_ssts.save(str(tmp_path), [entry])
    os.link(sst, tmp_path / "linked.sst")
    assert (
        local_ssts.load(str(tmp_path))[local_ssts.identify(str(tmp_path / "linked.sst"))] == entry
    )
    sst.write_bytes(b"9876543210")
    os.utime(sst, ns=(1, 1))
    assert local_ssts.identify(str(sst)) not in local_ssts.load(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"ssts": 1}', '{"ssts": [{"ref": {}, "identity": [1], "manifest": "x"}]}'],
)
def test_a_damaged_cache_is_an_empty_one(tmp_path: Path, content: str) -> None:
    assert local_ssts.load(str(tmp_path)) == {}
    (tmp_path / local_ssts.FILE_NAME).write_text(content)
    assert local_ssts.load(str(tmp_path)) == {}
