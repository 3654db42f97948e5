"""Storage on a Hadoop file system (`hdfs:`, `abfs:`, `gs:`). A JVM moves the bytes.

The agent asks the job's JVM, by JSON over the link (`HadoopFiles.scala`); it has the job's own
credentials. Any other process asks its session's JVM, or one of its own (`hadoop_jvm`). Bytes go
through local files, never through the link. A put writes a staging file and renames it; HDFS
renames atomically.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from millpond.errors import (
    ConflictError,
    ErrorKind,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.format.layout import new_staging_name
from millpond.format.roots import RootUri
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.keys import check_is_file, check_key, check_prefix, check_range
from millpond.storage.local import translate, translate_restored

Files = Callable[[str, str], str]

_TOKEN_HINT = (
    "The job's delegation token has expired. Start the job with spark.kerberos.keytab and"
    " spark.kerberos.principal, so that Spark renews it."
)
_QUOTA_HINT = (
    "`hdfs dfs -count -q <directory>` shows the quotas. Raise them with `hdfs dfsadmin -setQuota`"
    " or `-setSpaceQuota`, then restart the query. A file that is being written counts as a whole"
    " block, dfs.blocksize times dfs.replication."
)
_UNREACHED = (
    "Check that the service at this address runs and that this host reaches it (on HDFS: the name"
    " node), then restart the query."
)
_NO_DATA_NODE = (
    "`hdfs dfsadmin -report` lists the data nodes. Start those that are missing, or free their"
    " disks, then restart the query."
)
# The classes of the JVM's exceptions for a jar that is missing, or for another Hadoop.
_NO_CONNECTOR = (
    "UnsupportedFileSystemException",
    "No FileSystem for scheme",
    "ClassNotFoundException",
    "NoClassDefFoundError",
    "NoSuchMethodError",
    "ServiceConfigurationError",
)
# By the class of the JVM's exception, or by a part of its message.
_HINTS = {
    "SafeModeException": "The name node takes no changes now. `hdfs dfsadmin -safemode get` says"
    " whether it still does; if it does not leave safe mode by itself, run `hdfs dfsadmin -safemode"
    " leave`. Then restart the query.",
    "StandbyException": "This name node is on standby. Name the nameservice in the URI instead of"
    " one host, with its hdfs-site.xml in HADOOP_CONF_DIR.",
    "UnknownHostException": "The address names a host that nobody knows. Correct it in"
    " checkpointLocation or in the option storage.uri. If it is a nameservice, put its"
    " hdfs-site.xml into HADOOP_CONF_DIR.",
    "wiki.apache.org/hadoop": _UNREACHED,  # so ends what Hadoop says of a failed connection
    "ConnectTimeoutException": _UNREACHED,
    "could only be written to 0 of": _NO_DATA_NODE,
    "BlockMissingException": _NO_DATA_NODE,
    "All datanodes": _NO_DATA_NODE,
}

_files: Files | None = None


def use(files: Files | None) -> None:
    """Set how this process asks the JVM: `files(method, request)`, JSON both ways.

    None: as `hadoop_jvm.ask` does.
    """
    global _files
    _files = files


class HadoopStorage:
    """Files below one directory of a Hadoop file system.

    Args:
        root: the root of the Spark checkpoint.
        files: asks the JVM; None: as `use` set.
    """

    def __init__(self, root: RootUri, *, files: Files | None = None) -> None:
        self._site = f"{root.scheme}://{root.authority}"
        self._path = root.path.rstrip("/")
        self._files = files if files is not None else _files or _ask_a_jvm

    def __repr__(self) -> str:
        return f"HadoopStorage({self._uri('')!r})"

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        check_key(key)
        check_is_file(local_path)
        self._ask(
            "put",
            key,
            local=os.path.abspath(local_path),
            if_absent=if_absent,
            staging=new_staging_name(),
        )

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        check_key(key)
        with _LocalFile() as local:
            local.write(data)
            self.put_file(key, local.path, if_absent=if_absent)

    def read(self, key: str) -> bytes:
        check_key(key)
        with _LocalFile() as local:
            self._ask("get", key, local=local.path)
            return local.read()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(key, start, length)
        with _LocalFile() as local:
            self._ask("get", key, local=local.path, start=start, length=length)
            return local.read()

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        check_key(key)
        directory = os.path.dirname(os.path.abspath(local_path))
        temporary = os.path.join(directory, new_staging_name())
        try:
            self._ask("get", key, local=temporary)
            os.replace(temporary, local_path)
        except OSError as e:
            raise translate_restored(e, f"fetching {key} to {local_path}") from e
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def stat(self, key: str) -> ObjectInfo:
        check_key(key)
        return self._info(self._ask("stat", key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        directory = prefix.rpartition("/")[0]
        found = [self._info(entry) for entry in self._ask("list", directory)["files"]]
        return iter(
            sorted(
                (info for info in found if info.key.startswith(prefix)), key=lambda info: info.key
            )
        )

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self._uri(check_key(key)) for key in keys]
        if paths:
            self._ask("delete", "", paths=paths)

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        check_key(key)
        return None

    def local_path(self, key: str) -> str | None:
        check_key(key)
        return None

    def _uri(self, key: str) -> str:
        return f"{self._site}{self._path}/{key}" if key else f"{self._site}{self._path or '/'}"

    def _info(self, entry: dict[str, Any]) -> ObjectInfo:
        path: str = entry["path"]
        return ObjectInfo(path[len(self._path) + 1 :], entry["size_bytes"], entry["modified_ms"])

    def _ask(self, method: str, key: str, **more: Any) -> dict[str, Any]:
        uri = self._uri(key)
        answer = json.loads(self._files(method, json.dumps({"path": uri, **more})))
        if "error" in answer:
            raise _error(f"{method} {uri}", answer["error"]["class"], answer["error"]["message"])
        ok: dict[str, Any] = answer["ok"]
        return ok


def _ask_a_jvm(method: str, request: str) -> str:
    from millpond.storage.hadoop_jvm import ask  # start-up time: no agent needs it

    return ask(method, request)


def _error(what: str, name: str, message: str) -> MillpondError:
    """Return the error for an exception of the JVM, by the name of its class."""
    text = f"{what}: {name}: {message}"
    if name in ("FileNotFoundException", "ParentNotDirectoryException", "NotDirectoryException"):
        return NotFoundError(text, kind=ErrorKind.OBJECT_NOT_FOUND)
    if name == "FileAlreadyExistsException":
        return ConflictError(text, kind=ErrorKind.OBJECT_EXISTS)
    if name in ("AccessControlException", "AccessDeniedException"):
        return UnavailableError(text, kind=ErrorKind.STORAGE_DENIED)
    if name == "InvalidToken":
        return UnavailableError(text, kind=ErrorKind.STORAGE_DENIED, hint=_TOKEN_HINT)
    if "Quota" in name:
        return UnavailableError(text, kind=ErrorKind.STORAGE_FULL, hint=_QUOTA_HINT)
    if "No space left" in message:
        return UnavailableError(text, kind=ErrorKind.STORAGE_FULL)
    if any(sign == name or sign in message for sign in _NO_CONNECTOR):
        return UnsupportedError(
            text,
            kind=ErrorKind.STORAGE_UNSUPPORTED,
            hint="Put the jar of this file system, for the Hadoop of this Spark, on Spark's class"
            " path (for a command: into SPARK_DIST_CLASSPATH), or use file: or s3://.",
        )
    hints = [hint for sign, hint in _HINTS.items() if sign == name or sign in message]
    return UnavailableError(
        text, kind=ErrorKind.STORAGE_UNAVAILABLE, hint=hints[0] if hints else ""
    )


class _LocalFile:
    """A file through which bytes go from one process to the other.

    The end of the block removes it. If this process is killed, a later process does.
    """

    def __enter__(self) -> _LocalFile:
        # Start-up time: every agent imports this module, and few use it.
        from millpond.local.scratch import scratch_directory

        self._scratch = scratch_directory("hadoop")
        try:
            self.path = os.path.join(self._scratch.__enter__(), "file")
        except OSError as e:
            raise translate(e, "making a temporary file", local=True) from e
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.__exit__(None, None, None)

    def write(self, data: bytes) -> None:
        """Write `data` as its content. Raises: UnavailableError: LOCAL_DISK_FULL."""
        try:
            with open(self.path, "wb") as file:
                file.write(data)
        except OSError as e:
            raise translate(e, f"writing {self.path}", local=True) from e

    def read(self) -> bytes:
        """Return its content."""
        with open(self.path, "rb") as file:
            return file.read()
