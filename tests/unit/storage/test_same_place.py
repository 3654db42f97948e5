"""Several names of one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import ErrorKind
from millpond.storage.same_place import canonical, is_same, one_name
from tests.refusals import refused

_ABFS = "c@a.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/data/ckpt", "file:/data/ckpt"),
        ("file:/data/ckpt", "file:/data/ckpt"),
        ("file:///data/ckpt/", "file:/data/ckpt"),
        ("file://localhost/data//./ckpt", "file:/data/ckpt"),
        ("FILE:/data/a b%20", "file:/data/a b%20"),
        ("s3a://Bucket/x/", "s3://Bucket/x"),
        ("s3n://Bucket/x", "s3://Bucket/x"),
        ("s3://Bucket/X", "s3://Bucket/X"),
        ("hdfs://nn:8020/x", "hdfs://nn/x"),
        ("hdfs://nn:9000/x", "hdfs://nn:9000/x"),
        ("gs://nn:8020/x", "gs://nn:8020/x"),
        (f"abfss://{_ABFS}/x", f"abfs://{_ABFS}/x"),
        (f"abfs://{_ABFS}/x", f"abfs://{_ABFS}/x"),
        ("viewfs:/x", "viewfs:/x"),
    ],
)
def test_canonical_form(written: str, meant: str) -> None:
    assert canonical(written) == meant == canonical(meant)


def test_two_names_of_one_directory(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert is_same(f"file:{tmp_path}/there", f"{tmp_path}/link")
    (tmp_path / "other").mkdir()
    assert not is_same(f"{tmp_path}/there", f"{tmp_path}/other")
    assert not is_same(f"{tmp_path}/there", f"{tmp_path}/gone")
    assert not is_same("s3://b/x", f"{tmp_path}/there")


def test_what_is_not_there_yet_has_several_names_too(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert is_same(f"{tmp_path}/link/new/x", f"file:{tmp_path}/there/new/x")
    assert is_same(f"{tmp_path}/gone", f"file://{tmp_path}//gone/")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3://b/x", "s3a://b/x/", True),
        ("hdfs://nn/x", "hdfs://nn:8020/x", True),
        (f"abfs://{_ABFS}/x", f"abfss://{_ABFS}/x", True),
        ("s3://b/x", "s3://b/y", False),
        ("s3://b/x", "gs://b/x", False),
        ("hdfs://nn/x", "hdfs://nn:9000/x", False),
    ],
)
def test_two_names_of_one_place_elsewhere(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) is is_same(other, one) is same


def test_what_is_no_place_has_no_name() -> None:
    refused(ErrorKind.INVALID_ARGUMENT, is_same, "s3://b/x", "relative/path")
    refused(ErrorKind.INVALID_ARGUMENT, one_name, "")
