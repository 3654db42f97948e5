"""Storage on a Hadoop file system (`hdfs:`, `abfs:`, `gs:`). A JVM moves the bytes.

The agent asks the job's JVM, by JSON over the link (`HadoopFiles.scala`); it has the job's own
credentials. Any other process asks its session's JVM, or one of its own (`hadoop_jvm`). Bytes go
through local files, never through the link. A put writes a staging file and renames it; HDFS
renames atomically. On GCS a put writes the file itself, which appears whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from millpond.errors import MillpondError
from millpond.format.layout import new_staging_name
from millpond.format.roots import RootUri
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.hadoop_errors import DISK_HINT, error_of
from millpond.storage.keys import check_is_file, check_key, check_prefix, check_range
from millpond.storage.local import translate_restored

Files = Callable[[str, str], str]

_files: Files | None = None


def use(files: Files | None) -> None:
    """Set how this process asks the JVM: `files(method, request)`, JSON both ways.

    None: as `hadoop_jvm.ask` does.
    """
    global _files
    _files = files


def has_jvm() -> bool:
    """Return whether a JVM with the job's settings runs: an agent's, or that of a session."""
    from millpond.storage.hadoop_jvm import session_files  # start-up time: no agent needs it

    return _files is not None or session_files() is not None


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
        # ABFS may list a folder twice: by its marker, and by the names of its files.
        found = {info.key: info for info in map(self._info, self._ask("list", directory)["files"])}
        return iter([found[key] for key in sorted(found) if key.startswith(prefix)])

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
            raise error_of(f"{method} {uri}", answer["error"]["class"], answer["error"]["message"])
        ok: dict[str, Any] = answer["ok"]
        return ok


def _ask_a_jvm(method: str, request: str) -> str:
    from millpond.storage.hadoop_jvm import ask  # start-up time: no agent needs it

    return ask(method, request)


class _LocalFile:
    """A file through which bytes go from one process to the other.

    The end of the block removes it. If this process is killed, a later process does.
    """

    def __enter__(self) -> _LocalFile:
        # Start-up time: every agent imports this module, and few use it.
        from millpond.local.scratch import scratch_directory

        self._scratch = scratch_directory("hadoop")
        self.path = os.path.join(self._scratch.__enter__(), "file")
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.__exit__(None, None, None)

    def write(self, data: bytes) -> None:
        """Write `data` as its content. Raises: UnavailableError: LOCAL_DISK_FULL, and others."""
        try:
            with open(self.path, "wb") as file:
                file.write(data)
        except OSError as e:
            raise _own_disk(e, f"writing {self.path}") from e

    def read(self) -> bytes:
        """Return its content. Raises: UnavailableError: LOCAL_FILES_LOST, and others."""
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError as e:
            raise _own_disk(e, f"reading {self.path}") from e


def _own_disk(e: OSError, what: str) -> MillpondError:
    return translate_restored(e, what, hint=DISK_HINT)
