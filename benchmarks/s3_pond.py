# SPDX-License-Identifier: Apache-2.0
"""An S3 server for measurements: it answers every request after a fixed latency.

It is one process with one event loop. moto needs some milliseconds of CPU for a request, and holds
the interpreter meanwhile. This server needs a tenth of a millisecond, sends large bodies by
`sendfile`, and notes every request. It does what Millpond asks of S3 (`millpond storage check`
passes), and checks no signature.

`python -m benchmarks.s3_pond --latency-ms 20 --directory DIR` prints the port. `GET /-/log` answers
with the requests since the last such call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_SMALL_BYTES = 256 * 1024  # larger bodies are files, for `sendfile`
_PAGE = 1000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class _Object:
    """One stored object: its bytes, or the file with them."""

    size_bytes: int
    tag: str
    modified_s: float
    metadata: Mapping[str, str]
    data: bytes | None
    path: Path | None

    def read(self) -> bytes:
        if self.data is not None:
            return self.data
        assert self.path is not None
        return self.path.read_bytes()


@dataclass
class _Upload:
    bucket: str
    key: str
    metadata: Mapping[str, str]
    begun_s: float
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Request:
    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def about(self) -> str:
        """Return the key; for a listing its prefix, for a deletion its first key."""
        if self.key or self.method == "GET":
            return self.key or self.query.get("prefix", "")
        return next(iter(_keys(self.body)), "") if "delete" in self.query else ""

    @property
    def operation(self) -> str:
        """Return `GET`, `PUT`, `COPY`, `HEAD`, `DELETE` or `LIST`.

        For multipart uploads: `CREATE`, `PART`, `COMPLETE`, `ABORT` or `UPLOADS`.
        """
        if self.method == "GET" and "uploads" in self.query:
            return "UPLOADS"
        if self.method == "POST":
            return (
                "DELETE"
                if "delete" in self.query
                else "CREATE"
                if "uploads" in self.query
                else "COMPLETE"
            )
        if "uploadId" in self.query:
            return {"PUT": "PART", "DELETE": "ABORT"}.get(self.method, self.method)
        if self.method == "PUT" and "x-amz-copy-source" in self.headers:
            return "COPY"
        return "LIST" if self.method == "GET" and not self.key else self.method


class _Refusal(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Answer:
    """Status, headers, and a body in memory or a range of a file."""

    def __init__(
        self, status: int = 200, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        self.status, self.headers, self.body = status, dict(headers or {}), body
        self.length = len(body)
        self.file: tuple[Path, int, int] | None = None


class _Link:
    """All connections share its `bandwidth` bytes a second; 0: no limit."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._free_s = 0.0

    async def wait(self, size_bytes: int) -> None:
        """Wait until the link has room."""
        if not self._bandwidth:
            return
        now = time.monotonic()
        self._free_s = max(self._free_s, now - 0.01) + size_bytes / self._bandwidth
        if self._free_s > now:
            await asyncio.sleep(self._free_s - now)


class Pond:
    """The objects, and the log of requests."""

    def __init__(
        self, directory: Path, latency_s: float, bandwidth: float, up_bandwidth: float = 0
    ) -> None:
        self.directory, self.latency_s = directory, latency_s
        self.down, self.up = _Link(bandwidth), _Link(up_bandwidth)
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.uploads: dict[str, _Upload] = {}
        self.log: list[tuple[int, str, str, int]] = []

    # ---- what each request does

    def answer(self, r: _Request) -> _Answer:
        """Do one request. Raises: _Refusal."""
        if not r.key and r.method == "PUT":
            self.buckets.setdefault(r.bucket, {})
            return _Answer()
        objects = self.buckets.get(r.bucket)
        if objects is None:
            raise _Refusal(404, "NoSuchBucket")
        do = getattr(self, f"_{r.operation.lower()}", None)
        if do is None:
            raise _Refusal(501, "NotImplemented")
        answer: _Answer = do(objects, r)
        return answer

    def _store(
        self, objects: dict[str, _Object], key: str, data: bytes, metadata: Mapping[str, str]
    ) -> _Object:
        path = None
        if len(data) > _SMALL_BYTES:
            path = self.directory / uuid.uuid4().hex
            path.write_bytes(data)
        tag = f'"{uuid.uuid4().hex}"'
        stored = _Object(
            len(data), tag, time.time(), metadata, data if path is None else None, path
        )
        old = objects.get(key)
        objects[key] = stored
        if old is not None and old.path is not None:
            old.path.unlink()
        return stored

    @staticmethod
    def _unless_there(objects: dict[str, _Object], r: _Request) -> None:
        if r.headers.get("if-none-match") == "*" and r.key in objects:
            raise _Refusal(412, "PreconditionFailed")

    def _put(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        self._unless_there(objects, r)
        return _Answer(headers={"ETag": self._store(objects, r.key, r.body, _metadata(r)).tag})

    def _copy(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        bucket, _, key = unquote(r.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        found = self.buckets.get(bucket, {}).get(key)
        if found is None:
            raise _Refusal(404, "NoSuchKey")
        if r.headers.get("x-amz-copy-source-if-match", found.tag).strip('"') != found.tag.strip(
            '"'
        ):
            raise _Refusal(412, "PreconditionFailed")
        stored = self._store(objects, r.key, found.read(), _metadata(r))
        return _xml(
            "CopyObjectResult",
            f"<ETag>{stored.tag}</ETag><LastModified>{_iso(stored.modified_s)}</LastModified>",
        )

    def _found(self, objects: dict[str, _Object], r: _Request) -> _Object:
        found = objects.get(r.key)
        if found is None:
            raise _Refusal(404, "NoSuchKey")
        if r.headers.get("if-match", found.tag).strip('"') != found.tag.strip('"'):
            raise _Refusal(412, "PreconditionFailed")
        return found

    def _head(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        found = self._found(objects, r)
        answer = _Answer(headers=_described(found))
        answer.length = found.size_bytes
        return answer

    def _get(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        found = self._found(objects, r)
        start, end = 0, found.size_bytes
        answer = _Answer(headers=_described(found))
        if "range" in r.headers:
            first, _, last = r.headers["range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(end, int(last) + 1 if last else end)
            if start >= found.size_bytes:
                raise _Refusal(416, "InvalidRange")
            answer.status = 206
            answer.headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.size_bytes}"
        answer.length = end - start
        if found.path is not None:
            answer.file = (found.path, start, end - start)
        else:
            answer.body = found.read()[start:end]
        return answer

    def _list(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        prefix, after = r.query.get("prefix", ""), r.query.get("continuation-token", "")
        size = min(_PAGE, int(r.query.get("max-keys", _PAGE)))
        keys = sorted(key for key in objects if key.startswith(prefix) and key > after)
        page, more = keys[:size], len(keys) > size
        entries = "".join(
            f"<Contents><Key>{_name(key, r)}</Key><LastModified>{_iso(objects[key].modified_s)}</LastModified>"
            f"<ETag>{escape(objects[key].tag)}</ETag><Size>{objects[key].size_bytes}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        encoding = (
            "<EncodingType>url</EncodingType>" if r.query.get("encoding-type") == "url" else ""
        )
        return _xml(
            "ListBucketResult",
            f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{encoding}{token}{entries}",
        )

    def _delete(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        keys = [r.key]
        if r.method == "POST":
            keys = _keys(r.body)
        for key in keys:
            gone = objects.pop(key, None)
            if gone is not None and gone.path is not None:
                gone.path.unlink()
        told = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml("DeleteResult", told) if r.method == "POST" else _Answer(204)

    # ---- multipart uploads

    def _create(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        upload_id = uuid.uuid4().hex
        self.uploads[upload_id] = _Upload(r.bucket, r.key, _metadata(r), time.time())
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")

    def _upload(self, r: _Request) -> _Upload:
        upload = self.uploads.get(r.query["uploadId"])
        if upload is None:
            raise _Refusal(404, "NoSuchUpload")
        return upload

    def _part(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        self._upload(r).parts[int(r.query["partNumber"])] = r.body
        return _Answer(headers={"ETag": f'"{zlib.crc32(r.body):08x}"'})

    def _complete(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        upload = self._upload(r)
        self._unless_there(objects, r)
        del self.uploads[r.query["uploadId"]]
        data = b"".join(upload.parts[number] for number in sorted(upload.parts))
        stored = self._store(objects, r.key, data, upload.metadata)
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(stored.tag)}</ETag>")

    def _abort(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        self.uploads.pop(r.query["uploadId"], None)
        return _Answer(204)

    def _uploads(self, objects: dict[str, _Object], r: _Request) -> _Answer:
        found = "".join(
            f"<Upload><Key>{_name(upload.key, r)}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{_iso(upload.begun_s)}</Initiated></Upload>"
            for upload_id, upload in self.uploads.items()
            if upload.bucket == r.bucket and upload.key.startswith(r.query.get("prefix", ""))
        )
        return _xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{found}")

    # ---- HTTP

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while (request := await _receive(reader, writer, self.up)) is not None:
                if request.bucket == "-":
                    taken, self.log = self.log, []
                    answer = _Answer(body=json.dumps(taken).encode())
                else:
                    started_ms = time.time_ns() // 1_000_000
                    await asyncio.sleep(self.latency_s)
                    try:
                        answer = self.answer(request)
                    except _Refusal as e:
                        answer = _xml("Error", f"<Code>{e.code}</Code><Message>{e.code}</Message>")
                        answer.status = e.status
                    carried = len(request.body) or (
                        0 if request.method == "HEAD" else answer.length
                    )
                    self.log.append((started_ms, request.operation, request.about, carried))
                await self._send(writer, request, answer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, request: _Request, answer: _Answer) -> None:
        headers = {"Content-Length": str(answer.length), "Server": "pond", **answer.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {answer.status} {answer.status}\r\n{lines}\r\n".encode("latin-1")
        if request.method == "HEAD":
            writer.write(head)
        elif answer.file is None:
            writer.write(head + answer.body)
        else:
            writer.write(head)
            path, start, length = answer.file
            with path.open("rb") as file:
                while length:
                    step = min(length, _CHUNK_BYTES)
                    await self.down.wait(step)
                    await asyncio.get_running_loop().sendfile(writer.transport, file, start, step)
                    start, length = start + step, length - step
        await writer.drain()


async def _receive(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link
) -> _Request | None:
    """Return the next request of a connection, whose body comes by `link`; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    if headers.get("expect") == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body, left = bytearray(), int(headers.get("content-length", 0))
    while left:
        step = min(left, _CHUNK_BYTES)
        await link.wait(step)
        body += await reader.readexactly(step)
        left -= step
    path, _, query = target.partition("?")
    bucket, _, key = unquote(path).lstrip("/").partition("/")
    return _Request(
        method, bucket, key, dict(parse_qsl(query, keep_blank_values=True)), headers, bytes(body)
    )


def _keys(body: bytes) -> list[str]:
    return [
        e.text or ""
        for e in ElementTree.fromstring(body).iter()
        if e.tag.rpartition("}")[2] == "Key"
    ]


def _metadata(r: _Request) -> dict[str, str]:
    return {name: value for name, value in r.headers.items() if name.startswith("x-amz-meta-")}


def _described(found: _Object) -> dict[str, str]:
    modified = formatdate(found.modified_s, usegmt=True)
    return {
        "ETag": found.tag,
        "Last-Modified": modified,
        "Accept-Ranges": "bytes",
        **found.metadata,
    }


def _name(key: str, r: _Request) -> str:
    return quote(key, safe="/") if r.query.get("encoding-type") == "url" else escape(key)


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _xml(root: str, content: str) -> _Answer:
    space = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"' if root != "Error" else ""
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root}{space}>{content}</{root}>'
    return _Answer(headers={"Content-Type": "application/xml"}, body=text.encode())


async def _main(directory: Path, latency_s: float, bandwidth: float, up_bandwidth: float) -> None:
    pond = Pond(directory, latency_s, bandwidth, up_bandwidth)
    server = await asyncio.start_server(
        pond.serve, "127.0.0.1", 0, backlog=1024, limit=_CHUNK_BYTES
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    _parser.add_argument("--directory", type=Path, required=True, help="for large objects")
    _parser.add_argument("--latency-ms", type=float, default=20)
    _parser.add_argument(
        "--mb-per-s", type=float, default=0, help="of the link that all answers share; 0: no limit"
    )
    _parser.add_argument(
        "--up-mb-per-s", type=float, default=0, help="the same for the bodies of all requests"
    )
    _given = _parser.parse_args()
    asyncio.run(
        _main(
            _given.directory,
            _given.latency_ms / 1000,
            _given.mb_per_s * 1e6,
            _given.up_mb_per_s * 1e6,
        )
    )
