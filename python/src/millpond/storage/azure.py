"""Storage on Azure (`abfs:`, `abfss:`) without Hadoop: one request for each object.

Agents and commands use it where obstore is installed. It sees what Hadoop's ABFS client wrote, and
the other way round: both keep a file as one blob of the same name. ABFS marks folders by empty
blobs; these are no objects here.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

from millpond.config import MIB
from millpond.errors import ConflictError, NotFoundError, UnsupportedError
from millpond.format.layout import new_staging_name
from millpond.format.roots import RootUri
from millpond.storage.azure_client import AzureClient, RangeEndError, installed
from millpond.storage.azure_settings import SCHEMES, azure_settings
from millpond.storage.base import Copied, ObjectInfo, Storage
from millpond.storage.hadoop import HadoopStorage, has_jvm
from millpond.storage.hadoop_site import site_settings
from millpond.storage.keys import check_is_file, check_key, check_prefix, check_range
from millpond.storage.local import translate_restored
from millpond.storage.retry import Retry, TransientError
from millpond.storage.settings import StorageSettings

_IN_PARTS_BYTES = 16 * MIB
_PART_BYTES = 8 * MIB
_IN_MEMORY_BYTES = 64 * MIB
_DELETE_BATCH = 256  # of a request
_PUT_NAME = "millpond_put"  # Azure wants an identifier
_FOLDER = "hdi_isfolder"


def open_azure(root: RootUri, settings: StorageSettings) -> AzureStorage | None:
    """Return the storage of `root`; None if Hadoop's client has to reach it.

    That is so for all other schemes, without obstore, where the option says so, for what only
    Hadoop's client can do, and in a process beside a job's JVM that was told of no credential.

    Raises: InvalidInputError: INVALID_ARGUMENT, STORAGE_MISCONFIGURED.
        UnavailableError: STORAGE_DENIED: nothing tells who asks.
    """
    if root.scheme not in SCHEMES or settings.azure_by_hadoop or not installed():
        return None
    of_job = {name: text.reveal() for name, text in settings.azure}
    beside = has_jvm()
    if beside and not of_job:
        return None
    found = azure_settings(root, of_job or site_settings())
    # A command may be somebody by its environment. A job is who its settings say.
    if found is None or (beside and found.credentials is None):
        return None
    client = AzureClient(found, Retry(settings.deadline_ms))
    return AzureStorage(client, root.path.strip("/"), HadoopStorage(root) if beside else None)


class AzureStorage:
    """Blobs below one path of a container.

    Args:
        path: the path, without slashes at its ends; "": the whole container.
        beside: the same files by the job's JVM, if it has Hadoop's client for them.
    """

    def __init__(self, client: AzureClient, path: str, beside: HadoopStorage | None = None) -> None:
        self._client = client
        self._root = f"{path}/" if path else ""
        self._beside = beside

    def __repr__(self) -> str:
        return f"AzureStorage({self._client.where(self._root)!r})"

    # ---- putting

    def put_file(
        self, key: str, local_path: str, *, if_absent: bool = False, link: bool = False
    ) -> None:
        target = self._target(key)
        check_is_file(local_path)
        try:
            size_bytes = os.path.getsize(local_path)
            # Azure's parts have no condition that obstore could give. The JVM needs no memory for a
            # whole file.
            if if_absent and size_bytes > _IN_MEMORY_BYTES and self._beside is not None:
                with suppress(UnsupportedError):  # it has no ABFS
                    self._beside.put_file(key, local_path, if_absent=True)
                    return
            if if_absent or size_bytes <= _IN_PARTS_BYTES:
                with open(local_path, "rb") as file:
                    self._put(target, file.read(), if_absent)
                return
            # opened out here: inside, a missing file would count as a missing blob
            with open(local_path, "rb") as file:
                self._client.call("put", target, partial(_put_parts, target=target, file=file))
        except OSError as e:
            raise translate_restored(e, f"reading {local_path}") from e

    def put_bytes(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self._put(self._target(key), data, if_absent)

    def _put(self, target: str, data: bytes, if_absent: bool) -> None:
        name = uuid.uuid4().hex
        mode = "create" if if_absent else "overwrite"
        attributes = {_PUT_NAME: name}
        lost = False  # an answer

        def send(obs: Any, store: Any) -> None:
            obs.put(store, target, data, mode=mode, attributes=attributes, use_multipart=False)

        def attempt() -> None:
            nonlocal lost
            try:
                self._client.once("put", target, send)
            except TransientError:
                lost = True
                raise
            except ConflictError:
                # It may be the object of an attempt whose answer got lost.
                if not lost or self._attributes(target).get(_PUT_NAME) != name:
                    raise

        self._client.repeat("put", attempt)

    # ---- reading

    def read(self, key: str) -> bytes:
        target = self._target(key)
        return self._client.call("get", target, lambda obs, store: _whole(obs, store, target))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        target = self._target(key)
        check_range(key, start, length)
        if length == 0:
            self.stat(key)
            return b""
        options = {"range": (start, start + length)}

        def fetch(obs: Any, store: Any) -> bytes:
            return bytes(obs.get(store, target, options=options).bytes())

        try:
            return self._client.call("get", target, fetch)
        except RangeEndError:
            self.stat(key)  # a folder's marker is empty, too
            return b""

    def get_to_file(self, key: str, local_path: str, *, link: bool = False) -> None:
        target = self._target(key)
        directory = os.path.dirname(os.path.abspath(local_path))
        temporary = os.path.join(directory, new_staging_name())
        try:
            with open(temporary, "xb") as file:
                self._client.call("get", target, partial(_copy, target=target, file=file))
            os.replace(temporary, local_path)
        except OSError as e:
            raise translate_restored(e, f"fetching {key} to {local_path}") from e
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def stat(self, key: str) -> ObjectInfo:
        target = self._target(key)

        def head(obs: Any, store: Any) -> Any:
            found = obs.get(store, target, options={"head": True})
            _check_file(found, target)
            return found.meta

        return self._info(self._client.call("head", target, head))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        start = self._root + prefix
        folder = start.rpartition("/")[0]
        entries = self._client.call(
            "list", folder, lambda obs, store: obs.list(store, folder or None).collect()
        )
        folders = {entry["path"].rpartition("/")[0] for entry in entries}
        return iter(
            sorted(
                (
                    self._info(entry)
                    for entry in entries
                    if entry["path"].startswith(start)
                    and (entry["size"] or self._is_file(entry["path"], folders))
                ),
                key=lambda info: info.key,
            )
        )

    def _is_file(self, path: str, folders: set[str]) -> bool:
        """Whether an empty blob is a file. Without children it says itself what it is."""
        if path in folders:
            return False
        try:
            return _FOLDER not in self._attributes(path)
        except NotFoundError:
            return False

    def _attributes(self, target: str) -> dict[str, str]:
        def head(obs: Any, store: Any) -> dict[str, str]:
            return dict(obs.get(store, target, options={"head": True}).attributes)

        return self._client.call("head", target, head)

    # ---- deleting

    def delete(self, keys: Iterable[str]) -> None:
        targets = [self._target(key) for key in keys]
        for start in range(0, len(targets), _DELETE_BATCH):
            batch = targets[start : start + _DELETE_BATCH]
            try:
                self._delete(batch)
            except NotFoundError:
                # The answer to the batch tells no more than its first failure.
                for target in batch:
                    with suppress(NotFoundError):
                        self._delete([target])

    def _delete(self, targets: Sequence[str]) -> None:
        self._client.call("delete", targets[0], lambda obs, store: obs.delete(store, [*targets]))

    # ---- what Azure is not asked for

    def copy_from(self, source: Storage, source_key: str, key: str) -> Copied | None:
        check_key(key)
        return None

    def local_path(self, key: str) -> str | None:
        check_key(key)
        return None

    def _target(self, key: str) -> str:
        return self._root + check_key(key)

    def _info(self, entry: Any) -> ObjectInfo:
        # Whole seconds, as Azure keeps them.
        modified_ms = int(entry["last_modified"].timestamp()) * 1000
        tag = (entry["e_tag"] or "").strip('"')
        return ObjectInfo(entry["path"][len(self._root) :], entry["size"], modified_ms, tag)


def _put_parts(obs: Any, store: Any, *, target: str, file: BinaryIO) -> None:
    file.seek(0)
    obs.put(store, target, file, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=4)


def _check_file(found: Any, target: str) -> None:
    if found.meta["size"] == 0 and _FOLDER in found.attributes:
        raise FileNotFoundError(f"{target} is a folder")


def _whole(obs: Any, store: Any, target: str) -> bytes:
    found = obs.get(store, target)
    _check_file(found, target)
    return bytes(found.bytes())


def _copy(obs: Any, store: Any, *, target: str, file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
    found = obs.get(store, target)
    _check_file(found, target)
    for data in found.stream(min_chunk_size=MIB):
        file.write(data)
