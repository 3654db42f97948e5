"""The Python half of Hadoop's file systems, with a stand-in for the JVM's half.

`integration/test_hadoop.py` has the real one.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import ErrorKind, MillpondError
from millpond.format.roots import parse_root
from millpond.local.scratch import scratch_directory
from millpond.storage import LocalStorage, Storage, open_storage
from millpond.storage import hadoop as module
from millpond.storage.hadoop import HadoopStorage
from millpond.testing.storage_contract import StorageContract


class FakeJvm:
    """Answers as `HadoopFiles.scala` does, over a directory."""

    def __init__(self, directory: Path) -> None:
        self.storage = LocalStorage(str(directory))
        self.calls: list[str] = []

    def __call__(self, method: str, request: str) -> str:
        self.calls.append(method)
        try:
            return json.dumps({"ok": self.run(method, json.loads(request))})
        except MillpondError as e:
            names = {
                ErrorKind.OBJECT_NOT_FOUND: "FileNotFoundException",
                ErrorKind.OBJECT_EXISTS: "FileAlreadyExistsException",
            }
            return json.dumps(
                {"error": {"class": names.get(e.kind, "IOException"), "message": str(e)}}
            )

    def run(self, method: str, r: dict[str, Any]) -> dict[str, Any]:
        key = r["path"].removeprefix("hdfs://host:8020/")
        if method == "put":
            self.storage.put_file(key, r["local"], if_absent=r["if_absent"])
        elif method == "get":
            start = r.get("start", 0)
            data = self.storage.read(key)[start : start + r.get("length", 10**9)]
            Path(r["local"]).write_bytes(data)
        elif method == "stat":
            return self.entry(self.storage.stat(key))
        elif method == "list":
            return {"files": [self.entry(info) for info in self.storage.list(key + "/")]}
        else:
            self.storage.delete(path.removeprefix("hdfs://host:8020/") for path in r["paths"])
        return {}

    @staticmethod
    def entry(info: Any) -> dict[str, Any]:
        return {
            "path": "/" + info.key,
            "size_bytes": info.size_bytes,
            "modified_ms": info.modified_ms,
        }


class TestHadoopStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        root = parse_root("hdfs://host:8020/the checkpoint % of äö")
        return HadoopStorage(root, files=FakeJvm(tmp_path / "hdfs"))


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("AccessControlException", "Permission denied", ErrorKind.STORAGE_DENIED),
        ("DSQuotaExceededException", "", ErrorKind.STORAGE_FULL),
        ("IOException", "No space left on device", ErrorKind.STORAGE_FULL),
        (
            "UnsupportedFileSystemException",
            "No FileSystem for scheme abfs",
            ErrorKind.STORAGE_UNSUPPORTED,
        ),
        (
            "RuntimeException",
            "java.lang.ClassNotFoundException: Class GoogleHadoopFileSystem not found",
            ErrorKind.STORAGE_UNSUPPORTED,
        ),
        ("NoClassDefFoundError", "com/amazonaws/Any", ErrorKind.STORAGE_UNSUPPORTED),
        ("ConnectException", "refused", ErrorKind.STORAGE_UNAVAILABLE),
    ],
)
def test_errors_of_the_jvm(name: str, message: str, kind: ErrorKind) -> None:
    answer = json.dumps({"error": {"class": name, "message": message}})
    storage = HadoopStorage(parse_root("hdfs://host/x"), files=lambda method, request: answer)
    with pytest.raises(MillpondError, match="get") as caught:
        storage.read("a/b")
    assert (
        caught.value.kind is kind
        and "hdfs://host/x/a/b" in str(caught.value)
        and name in str(caught.value)
    )


@pytest.mark.parametrize(
    ("uri", "name", "message", "kind", "hint"),
    [
        (
            "abfs://c@a.dfs.core.windows.net/x",
            "FileNotFoundException",
            'Operation failed: "The specified container does not exist.", 404, GET',
            ErrorKind.STORAGE_BUCKET_MISSING,
            "",
        ),
        (
            "abfss://c@a.dfs.core.windows.net/x",
            "AccessDeniedException",
            'Operation failed: "Server failed to authenticate the request.", 403, HEAD',
            ErrorKind.STORAGE_DENIED,
            "fs.azure.account.key",
        ),
        (
            "abfs://c@a.dfs.core.windows.net/x",
            "ConfigurationPropertyNotFoundException",
            "Configuration property a.dfs.core.windows.net not found.",
            ErrorKind.STORAGE_DENIED,
            "fs.azure.account.key",
        ),
        (
            "abfs://c@a.dfs.core.windows.net/x",
            "InvalidAbfsRestOperationException",
            "java.net.ConnectException: Connection refused",
            ErrorKind.STORAGE_UNAVAILABLE,
            "this host reaches it",
        ),
        (
            "gs://bucket/x",
            "IOException",
            "Upload failed for 'gs://bucket/x'; caused by GoogleJsonResponseException: 404 Not"
            " Found",
            ErrorKind.STORAGE_BUCKET_MISSING,
            "",
        ),
        (
            "gs://bucket/x",
            "IOException",
            "Error accessing gs://bucket/x; caused by GoogleJsonResponseException: 401",
            ErrorKind.STORAGE_DENIED,
            "fs.gs.auth.type",
        ),
        (
            "gs://bucket/x",
            "UnopenedFileSystemException",
            "/key.json (Permission denied)",
            ErrorKind.STORAGE_DENIED,
            "key file",
        ),
        (
            "hdfs://host/x",
            "UnopenedFileSystemException",
            "/keytab (No such file or directory)",
            ErrorKind.STORAGE_UNAVAILABLE,
            "name a file",
        ),
        (
            "gs://bucket/x",
            "NumberFormatException",
            'For input string: "64m"',
            ErrorKind.STORAGE_MISCONFIGURED,
            "spark.hadoop.fs.gs.block.size=67108864",
        ),
        (
            "gs://bucket/x",
            "RuntimeException",
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.gs.GoogleHadoopFileSystem"
            " not found",
            ErrorKind.STORAGE_UNSUPPORTED,
            "spark.hadoop.fs.gs.impl=com.google",
        ),
    ],
)
def test_errors_of_object_stores(
    uri: str, name: str, message: str, kind: ErrorKind, hint: str
) -> None:
    answer = json.dumps({"error": {"class": name, "message": message}})
    storage = HadoopStorage(parse_root(uri), files=lambda method, request: answer)
    with pytest.raises(MillpondError) as caught:
        storage.put_bytes("a/b", b"")
    assert caught.value.kind is kind
    assert uri in str(caught.value) and hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("SafeModeException", "Name node is in safe mode.", "-safemode leave"),
        (
            "ConnectException",
            "see http://wiki.apache.org/hadoop/ConnectionRefused",
            "runs and that",
        ),
        ("IllegalArgumentException", "java.net.UnknownHostException: nobody", "HADOOP_CONF_DIR"),
        ("IOException", "could only be written to 0 of the 1 minReplication nodes", "-report"),
        ("NSQuotaExceededException", "", "-setQuota"),
        ("InvalidToken", "token can't be found in cache", "spark.kerberos.keytab"),
        ("StandbyException", "", "nameservice"),
        ("IOException", "something else", "or that the service answers"),
    ],
)
def test_hints_of_hdfs(name: str, message: str, hint: str) -> None:
    answer = json.dumps({"error": {"class": name, "message": message}})
    storage = HadoopStorage(parse_root("hdfs://host/x"), files=lambda method, request: answer)
    with pytest.raises(MillpondError) as caught:
        storage.put_bytes("a/b", b"")
    assert hint in caught.value.hint


def test_a_folder_that_is_listed_twice() -> None:
    """ABFS does so at the Blob endpoint. Each file is in the list once."""
    entry = {"path": "/x/a/b", "size_bytes": 3, "modified_ms": 4}
    answer = json.dumps({"ok": {"files": [entry, {**entry, "path": "/x/a/c"}, entry]}})
    storage = HadoopStorage(parse_root("abfs://c@a/x"), files=lambda method, request: answer)
    assert [info.key for info in storage.list("")] == ["a/b", "a/c"]


def test_the_agents_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_files", None)
    module.use(FakeJvm(tmp_path))
    open_storage("hdfs://host:8020/x").put_bytes("a", b"data")
    assert (tmp_path / "x/a").read_bytes() == b"data"


def test_nothing_local_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    storage = HadoopStorage(parse_root("hdfs://host:8020/x"), files=FakeJvm(tmp_path / "hdfs"))
    storage.put_bytes("a", b"data")
    assert storage.read("a") == b"data"
    with pytest.raises(MillpondError):
        storage.read("b")
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("method", ["read", "read_range", "put_bytes"])
def test_the_folder_of_temporary_files_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """That says nothing about the stored object: a collection would pass over a pin."""
    storage = HadoopStorage(parse_root("hdfs://host:8020/x"), files=FakeJvm(tmp_path / "hdfs"))
    storage.put_bytes("a", b"data")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    arguments: tuple[Any, ...] = {"read_range": (0, 1), "put_bytes": (b"x",)}.get(method, ())
    with pytest.raises(MillpondError) as caught:
        getattr(storage, method)("a", *arguments)
    assert caught.value.kind is ErrorKind.LOCAL_FILES_LOST and "TMPDIR" in caught.value.hint


@pytest.mark.parametrize(
    ("reason", "kind", "hint"),
    [
        ("No such file or directory", ErrorKind.LOCAL_FILES_LOST, "TMPDIR"),
        ("Not a directory", ErrorKind.LOCAL_FILES_LOST, "TMPDIR"),
        ("No space left on device", ErrorKind.LOCAL_DISK_FULL, "localDir"),
        ("Too many open files", ErrorKind.STORAGE_UNAVAILABLE, "ulimit -n"),
        ("Permission denied", ErrorKind.STORAGE_UNAVAILABLE, "TMPDIR"),
    ],
)
def test_the_disk_of_the_jvm_fails(reason: str, kind: ErrorKind, hint: str) -> None:
    answer = {"class": "LocalFileException", "message": f"/tmp/millpond/file ({reason})"}
    told = json.dumps({"error": answer})
    storage = HadoopStorage(parse_root("hdfs://host/x"), files=lambda method, request: told)
    with pytest.raises(MillpondError) as caught:
        storage.read("a")
    assert caught.value.kind is kind and hint in caught.value.hint


@pytest.mark.parametrize("reason", ["Too many open files", "Input/output error"])
def test_a_file_that_the_file_system_could_not_open_is_not_absent(reason: str) -> None:
    """Java has one exception for all that hinders it from opening a file."""
    answer = {"class": "FileNotFoundException", "message": f"/block/1 ({reason})"}
    told = json.dumps({"error": answer})
    storage = HadoopStorage(parse_root("hdfs://host/x"), files=lambda method, request: told)
    with pytest.raises(MillpondError) as caught:
        storage.read("a")
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE


def test_what_a_killed_agent_was_moving_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child does not report
        with module._LocalFile() as local:
            local.write(b"half way")
            os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 1
    with scratch_directory("another"):
        assert [path.name.split("-")[2] for path in tmp_path.iterdir()] == ["another"]
    assert list(tmp_path.iterdir()) == []
