"""One module builds and parses every path.

A path from a stored file cannot leave its store.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.format import layout, roots, spark_names, table_names
from millpond.format.layout import (
    ChangelogFile,
    ManifestFile,
    SstFile,
    StagingFile,
    parse_key,
    parse_store_file,
)
from millpond.model.ids import StoreId, VersionId
from millpond.storage import root_of
from tests.refusals import refused

ID = "0123456789abcdef"

STORES = st.builds(
    StoreId,
    st.integers(0, 99),
    st.integers(0, 70_000),
    st.sampled_from(["default", "left-keyToNumValues", "a_b"]),
)
VERSIONS = st.builds(
    VersionId, st.integers(1, 10**15), st.text("0123456789abcdef", min_size=16, max_size=16)
)

SHORT = "596f24a2108188250883f762ca594b54bb078f4cd7cb2556659775e889f365a5"


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("default", "default"),
        ("$ttl_a.b c/~_-", "$ttl_a%2Eb%20c%2F~_-"),
        ("状" * 28, "%E7%8A%B6" * 28),
        ("a" * 255, "a" * 255),
        ("状" * 29, f"{'%E7%8A%B6' * 21}%.{SHORT}"),
    ],
)
def test_a_table_has_the_name_of_its_column_family(family: str, name: str) -> None:
    """Savepoints have these names: they stay. File systems take names of 255 bytes."""
    key = table_names.table_key(StoreId(1, 2, "s"), family)
    assert key == f"tables/1/s/{name}/2.parquet"
    assert len(name) <= 255 and table_names.is_table_key(key, StoreId(1, 2, "s"), family)
    assert not table_names.is_table_key(key, StoreId(1, 3, "s"), family)


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=300))
def test_every_name_of_a_column_family_fits_and_is_its_own(family: str) -> None:
    key = table_names.table_key(StoreId(0, 0), family)
    assert all(len(part) <= 255 for part in key.split("/"))
    (name,) = key.split("/")[3:-1]
    for other in (f"{family}x", name):  # the latter was told by somebody who saw the savepoint
        assert other == family or table_names.table_key(StoreId(0, 0), other) != key


@given(STORES, VERSIONS, st.sampled_from([1, 2]))
def test_keys_are_parsed_as_they_were_built(
    store: StoreId, version: VersionId, spark_format: int
) -> None:
    stored = version if spark_format == 2 else VersionId(version.version)
    sst, staging = layout.new_sst_name(), layout.new_staging_name()
    for key, file in (
        (layout.changelog_key(store, version, spark_format), ChangelogFile(stored)),
        (layout.manifest_key(store, version, spark_format), ManifestFile(stored)),
        (layout.store_key(store, sst), SstFile(sst[4:-4])),
        (layout.store_key(store, staging), StagingFile(staging[len(".staging-") :])),
        (layout.store_key(store, "sst/" + staging), StagingFile(staging[len(".staging-") :])),
        (layout.store_key(store, "other"), None),
    ):
        assert key.startswith(layout.store_prefix(store))
        parsed = parse_key(key)
        assert parsed is not None
        assert (parsed.store, parsed.file, layout.store_key(store, parsed.name)) == (
            store,
            file,
            key,
        )


def test_names() -> None:
    store = StoreId(0, 3)
    assert layout.changelog_key(store, VersionId(12, ID), 1) == "state/0/3/12.changelog"
    assert layout.changelog_key(store, VersionId(12, ID), 2) == f"state/0/3/12_{ID}.changelog"
    assert layout.manifest_key(StoreId(1, 0, "x"), VersionId(12), 1) == "state/1/0/x/12.manifest"
    assert spark_names.offsets_key(7) == "offsets/7" and spark_names.commits_key(7) == "commits/7"
    assert spark_names.operator_metadata_v1_key(2) == "state/2/_metadata/metadata"
    assert spark_names.operator_metadata_v2_prefix(2) == "state/2/_metadata/v2/"
    assert layout.FORMAT_KEY == "millpond/format.json"
    with pytest.raises(InvalidInputError):
        layout.changelog_name(VersionId(12), 2)
    with pytest.raises(InvalidInputError):
        layout.manifest_name(VersionId(0), 1)


@pytest.mark.parametrize(
    "name",
    [
        "0.changelog",
        "01.changelog",
        "-1.changelog",
        "1.changelog.crc",
        ".1.changelog.crc",
        f"1_{ID.upper()}.changelog",
        f"1_{ID}0.manifest",
        "1_.manifest",
        "1.snapshot",
        "1.changelog\n",
        f"sst/{ID}.sst",
        f"{ID}{ID}.sst",
        f"sst/sst/{ID}{ID}.sst",
        ".staging-1",
        "9" * 30 + ".changelog",
        "_metadata/schema",
        "",
    ],
)
def test_names_that_are_not_ours(name: str) -> None:
    assert parse_store_file(name) is None
    assert layout.file_of(f"state/0/1/{name}") is None


@pytest.mark.parametrize(
    "key",
    [
        "state/0/_metadata/metadata",
        "state/0/3/_metadata/schema",
        "state/0/3/left/_metadata/schema",
        "state/0/_stateSchema/default/0_x",
        "state/0/3",
        "state/x/3/1.changelog",
        "state/00/3/1.changelog",
        "offsets/3",
        "millpond/format.json",
        "state/0/3/7/1.changelog",
    ],
)
def test_keys_that_belong_to_no_store(key: str) -> None:
    assert parse_key(key) is None


def test_batches() -> None:
    assert spark_names.parse_batch("17") == 17 and spark_names.parse_batch("0") == 0
    for name in (".17.crc", "017", "17.tmp", "", ".17.uuid.tmp"):
        assert spark_names.parse_batch(name) is None
        assert spark_names.log_entry(f"{spark_names.OFFSETS_DIR}/{name}") is None
    assert spark_names.log_entry(spark_names.offsets_key(17)) == (spark_names.OFFSETS_DIR, 17)
    assert spark_names.log_entry(spark_names.commits_key(0)) == (spark_names.COMMITS_DIR, 0)
    for key in ("offsets", "17", "state/0/17", "x/offsets/17", "offsets/17/18"):
        assert spark_names.log_entry(key) is None
    of_logs = {"metadata", "offsets/17", "commits/.17.crc", "sources/0/17"}
    for key in (*of_logs, "state/0/_metadata/metadata", "millpond/sources/1", "savepoint.json"):
        assert spark_names.is_of_logs(key) == (key in of_logs)


def test_files_of_runs_and_of_sweeps() -> None:
    assert layout.running_key("run") == "millpond/running/run.json"
    assert layout.parse_running(layout.running_key("command-1")) == "command-1"
    for name in ("command-1.hold", ".run.json", ".run.json.crc", "run.tmp", ""):
        assert layout.parse_running(f"{layout.RUNNING_PREFIX}{name}") is None
    assert layout.parse_running("millpond/format.json") is None
    assert layout.hold_key("command-1").startswith(layout.RUNNING_COMMANDS_PREFIX)
    prefix = layout.gc_announcements_prefix(3)
    for key in (layout.gc_candidates_key(3), layout.new_gc_announcement_key(3, "erased")):
        assert key.startswith(prefix) and prefix.startswith(layout.GC_PREFIX)
    assert not layout.gc_candidates_key(30).startswith(prefix)
    assert layout.parse_gc_announcement(layout.new_gc_announcement_key(3, "erased")) == "erased"
    for key in (layout.gc_candidates_key(3), f"{prefix}erased.json", "millpond/pins/erased-1.json"):
        assert layout.parse_gc_announcement(key) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../x",
        "sst/../../x",
        "a//b",
        "./a",
        "a/.",
        "a\\..\\b",
        "a\0",
        "a\n",
        "sst/",
        "\x7f",
    ],
)
def test_unsafe_paths(key: str) -> None:
    for check in (
        layout.check_relative,
        layout.check_sst_key,
        lambda k: layout.store_key(StoreId(0, 0), k),
    ):
        with pytest.raises(FormatError) as caught:
            check(key)
        assert caught.value.kind is ErrorKind.UNSAFE_PATH


def test_names_from_manifests() -> None:
    sst = layout.new_sst_name()
    assert layout.check_sst_key(sst) == sst
    assert layout.check_local_sst_name("000012.sst") == "000012.sst"
    assert layout.check_rocksdb_manifest_name("MANIFEST-000005") == "MANIFEST-000005"
    for name in ("12.manifest", "x/000012.sst", "../000012.sst", "000012.sst/", "CURRENT"):
        for check in (
            layout.check_sst_key,
            layout.check_local_sst_name,
            layout.check_rocksdb_manifest_name,
        ):
            with pytest.raises(FormatError) as caught:
                check(name)
            assert caught.value.kind is ErrorKind.UNSAFE_PATH


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("file:/x/ckpt", "/x/ckpt"),
        ("file:///x/ckpt", "/x/ckpt"),
        ("file://localhost/x/ckpt/", "/x/ckpt"),
        ("FILE:/x", "/x"),
        ("/x/ckpt/", "/x/ckpt"),
        ("//x//ckpt", "/x/ckpt"),
        ("/x/./ckpt", "/x/ckpt"),
        ("file:/x/my check point", "/x/my check point"),
        ("file:/x/100%25 é", "/x/100%25 é"),
        ("/x/a:b", "/x/a:b"),
        ("/", "/"),
        ("file:/", "/"),
    ],
)
def test_local_roots(root: str, path: str) -> None:
    assert roots.local_root(root) == path


@pytest.mark.parametrize(
    "root", ["", "x", "x/y:z", "file:x", "file:", "/x/../y", "file:/../x", "/x\0y"]
)
def test_roots_that_are_none(root: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        roots.local_root(root)
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_path_is_not_the_working_directory(text: str) -> None:
    """As of a variable of the shell that is unset: the savepoint that was there was deleted."""
    assert "empty" in refused(ErrorKind.INVALID_ARGUMENT, root_of, text).message
    assert root_of(".") == os.getcwd()


def test_other_schemes() -> None:
    assert roots.parse_root("s3a://bucket/a/b") == roots.RootUri("s3a", "bucket", "/a/b")
    for root in ("s3://b/x", "hdfs://h:8020/x", "file://host/x", "dbfs:/x"):
        with pytest.raises(UnsupportedError) as caught:
            roots.local_root(root)
        assert caught.value.kind is ErrorKind.STORAGE_UNSUPPORTED


@pytest.mark.parametrize(
    ("state", "root"),
    [
        ("file:/x/ckpt/state", "/x/ckpt"),
        ("file:///x/ckpt/state/", "/x/ckpt"),
        ("/x y/state", "/x y"),
        ("/state", "/"),
        ("file:/state", "/"),
        ("file:///state", "/"),
    ],
)
def test_checkpoint_of_state(state: str, root: str) -> None:
    assert roots.local_root(roots.checkpoint_of_state(state)) == root
    assert roots.checkpoint_of_state("s3a://bucket/x/state/") == "s3a://bucket/x"


def test_checkpoint_of_something_else() -> None:
    for state in ("file:/x/ckpt", "/x/estate", "state", ""):
        with pytest.raises(InvalidInputError):
            roots.checkpoint_of_state(state)
