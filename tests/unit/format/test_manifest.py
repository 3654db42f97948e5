"""Sealed files (manifests, format.json): round trips, damage, newer formats, paths that lead
elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ErrorKind, FormatError, MillpondError, UnsupportedError
from millpond.format.format_file import decode_format, encode_format
from millpond.format.manifest import Manifest, decode_manifest, encode_manifest
from millpond.format.sealed import seal
from millpond.model.ids import VersionId
from tests.examples import COMPOSED, FORMAT, MANIFEST, manifests


@given(manifests())
def test_round_trip(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_derived_values() -> None:
    assert MANIFEST.total_bytes == 4097
    assert MANIFEST.version_id == VersionId(20, MANIFEST.id)
    for value in (FORMAT, replace(FORMAT, backend="heap")):
        assert decode_format(encode_format(value)) == value
    assert FORMAT.key_groups.bits == 7


Decode = Callable[[bytes], object]
FILES: list[tuple[bytes, Decode, ErrorKind]] = [
    (encode_manifest(MANIFEST), decode_manifest, ErrorKind.MANIFEST_DAMAGED),
    (encode_format(FORMAT), decode_format, ErrorKind.FORMAT_DAMAGED),
]
each_file = pytest.mark.parametrize(
    ("data", "decode", "damaged"), FILES, ids=["manifest", "format"]
)


def kind_of(decode: Decode, data: bytes) -> ErrorKind | None:
    try:
        decode(data)
    except (FormatError, UnsupportedError) as e:
        assert e.hint
        return e.kind
    return None


@each_file
def test_every_single_damaged_byte_is_found(
    data: bytes, decode: Decode, damaged: ErrorKind
) -> None:
    format_at = data.index(b" 1 ") + 1
    for position in range(len(data)):
        for mask in (0x01, 0x02, 0x20, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= mask
            allowed = {damaged, *([ErrorKind.FORMAT_TOO_NEW] if position == format_at else [])}
            assert kind_of(decode, bytes(changed)) in allowed, f"byte {position} ^ {mask:#x}"


@each_file
def test_every_truncation_and_extension_is_found(
    data: bytes, decode: Decode, damaged: ErrorKind
) -> None:
    for length in range(len(data)):
        assert kind_of(decode, data[:length]) is damaged
    for tail in (b"\n", b" ", data):
        assert kind_of(decode, data + tail) is damaged
    assert kind_of(decode, b"\n" + data) is damaged


@given(st.data())
def test_any_damage_is_found(data: st.DataObject) -> None:
    whole, decode, _ = data.draw(st.sampled_from(FILES))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 30)))
    changed = whole[:start] + data.draw(st.binary(max_size=30)) + whole[end:]
    assert (kind_of(decode, changed) is None) == (changed == whole)


@each_file
def test_newer_formats(data: bytes, decode: Decode, damaged: ErrorKind) -> None:
    assert kind_of(decode, data.replace(b" 1 ", b" 2 ", 1)) is ErrorKind.FORMAT_TOO_NEW
    kind, body = data.split(b" ")[1].decode(), json.loads(data.split(b"\n", 1)[1])
    assert kind_of(decode, seal(kind, {**body, "something": {"new": 1}})) is None, (
        "the decoder ignores unknown fields"
    )
    with pytest.raises(UnsupportedError) as caught:
        decode(seal(kind, {**body, "required_features": ["warp"]}))
    assert caught.value.kind is ErrorKind.FORMAT_TOO_NEW and "warp" in str(caught.value)
    other = "format" if kind == "manifest" else "manifest"
    assert kind_of(decode, seal(other, body)) is damaged


def test_sources_need_the_feature_that_older_versions_refuse() -> None:
    assert (
        manifest_kind(lambda body: body.update(sources=[{"partition": 1}]))
        is ErrorKind.MANIFEST_DAMAGED
    )


def test_a_composed_manifest_comes_back_as_it_was_and_needs_its_feature() -> None:
    data = encode_manifest(COMPOSED)
    assert decode_manifest(data) == COMPOSED
    assert json.loads(data.split(b"\n", 1)[1])["required_features"] == ["composed"]
    assert list(COMPOSED.sst_keys(COMPOSED.store)) == [
        f"state/0/5/{sst.key}" for sst in MANIFEST.ssts
    ]
    assert list(COMPOSED.changelog_keys()) == ["state/0/5/21.changelog"]
    assert COMPOSED.total_bytes == 4096 + 1 + 1234


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (
            lambda body: body["changelogs"][0].update(name="../21.changelog"),
            ErrorKind.MANIFEST_DAMAGED,
        ),
        (
            lambda body: body["changelogs"][0].update(name="20.changelog"),
            ErrorKind.MANIFEST_DAMAGED,
        ),
        (lambda body: body["changelogs"][0].update(id="x"), ErrorKind.MANIFEST_DAMAGED),
        (lambda body: body["changelogs"][0].update(slots=[[5, 5]]), ErrorKind.MANIFEST_DAMAGED),
        (lambda body: body["sources"][0].update(slots=[[0, 1025]]), ErrorKind.MANIFEST_DAMAGED),
        (
            lambda body: body["sources"][0]["ssts"][0].update(key="sst/../x.sst"),
            ErrorKind.UNSAFE_PATH,
        ),
        (
            lambda body: body["sources"][0]["rocksdb"].update(manifest_name="x"),
            ErrorKind.UNSAFE_PATH,
        ),
        (
            lambda body: body["sources"][0]["rocksdb"].update(manifest_zlib_b64="AAAA"),
            ErrorKind.MANIFEST_DAMAGED,
        ),
        (lambda body: body.update(ssts=body["sources"][0]["ssts"]), ErrorKind.MANIFEST_DAMAGED),
    ],
)
def test_damaged_sources(change: Callable[[dict[str, Any]], object], kind: ErrorKind) -> None:
    body = json.loads(encode_manifest(COMPOSED).split(b"\n", 1)[1])
    change(body)
    assert kind_of(decode_manifest, seal("manifest", body)) is kind


def manifest_kind(change: Callable[[dict[str, Any]], object]) -> ErrorKind | None:
    """Decode a manifest with a changed body and a right seal."""
    body = json.loads(encode_manifest(MANIFEST).split(b"\n", 1)[1])
    change(body)
    return kind_of(decode_manifest, seal("manifest", body))


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["ssts"][0].update(key="../../../etc/passwd"),
        lambda b: b["ssts"][0].update(key="/etc/passwd"),
        lambda b: b["ssts"][0].update(key="sst/../" + "1" * 32 + ".sst"),
        lambda b: b["ssts"][0].update(local_name="../000001.sst"),
        lambda b: b["ssts"][0].update(local_name="CURRENT"),
        lambda b: b["rocksdb"].update(manifest_name="../MANIFEST-000001"),
        lambda b: b["rocksdb"].update(manifest_name="MANIFEST-000001\n"),
    ],
)
def test_paths_that_lead_elsewhere(change: Callable[[dict[str, Any]], object]) -> None:
    assert manifest_kind(change) is ErrorKind.UNSAFE_PATH


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.pop("version"),
        lambda b: b.update(version=0),
        lambda b: b.update(version=1.5),
        lambda b: b.update(version=True),
        lambda b: b.update(id="x"),
        lambda b: b.update(keys=-2),
        lambda b: b.update(ssts={}),
        lambda b: b.update(store={"operator": 0, "partition": 0, "name": "a/b"}),
        lambda b: b.update(parent_snapshot={"version": 1, "id": ""}),
        lambda b: b.pop("parent_snapshot"),
        lambda b: b["ssts"].append(b["ssts"][0]),
        lambda b: b["ssts"][0].update(size_bytes=0),
        lambda b: b["ssts"][0].update(crc32=2**32),
        lambda b: b["ssts"][0].update(smallest_hex="zz"),
        lambda b: b["key_groups"].update(slots=[[5, 5]]),
        lambda b: b["key_groups"].update(slots=[[5, 9], [8, 10]]),
        lambda b: b["key_groups"].update(slots=[[0, 1025]]),
        lambda b: b["key_groups"].update(slots=[[0]]),
        lambda b: b["key_groups"].update(scalable="yes"),
        lambda b: b["rocksdb"].update(manifest_zlib_b64="AAAA"),
        lambda b: b["rocksdb"].update(manifest_zlib_b64="not base64!"),
        lambda b: b["rocksdb"].update(manifest_zlib_b64=b["rocksdb"]["manifest_zlib_b64"][:-8]),
        lambda b: b["column_families"].append({"name": "x", "id": 65536}),
        lambda b: b["column_families"].append({**b["column_families"][0], "name": "x"}),
        lambda b: b.update(required_features="none"),
    ],
)
def test_wrong_fields_with_a_right_seal(change: Callable[[dict[str, Any]], object]) -> None:
    assert manifest_kind(change) is ErrorKind.MANIFEST_DAMAGED


def test_format_with_impossible_key_groups() -> None:
    for value in (replace(FORMAT, base=5), replace(FORMAT, max_parallelism=1000, base=8)):
        assert kind_of(decode_format, encode_format(value)) is ErrorKind.FORMAT_DAMAGED


def test_bodies_that_are_no_objects() -> None:
    bodies: list[Any] = [[], 7, None, "text"]
    for body in bodies:
        assert kind_of(decode_manifest, seal("manifest", body)) is ErrorKind.MANIFEST_DAMAGED


def test_messages_name_the_file() -> None:
    with pytest.raises(MillpondError, match=r"state/0/3/20\.manifest"):
        decode_manifest(b"", name="state/0/3/20.manifest")
