# SPDX-License-Identifier: Apache-2.0
"""Stands before a real S3 server: it passes requests on after a fixed latency, and notes each.

`python -m benchmarks.s3_proxy --port PORT --latency-ms 20` prints its own port. `PORT` is the
server's, on loopback. `GET /-/log` answers with the requests since the last such call, as
`s3_pond` does. Signatures stay whole: the server sees the address that the client asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

_LINE_LIMIT = 1 << 20
_NO_BODY = (204, 304)


@dataclass(frozen=True)
class _Head:
    """The first line and the headers of a message, and its bytes as they came."""

    line: str
    headers: dict[str, str]  # by names in lower case
    raw: bytes

    def without(self, name: str) -> bytes:
        """Return its bytes without a header."""
        lines = self.raw.split(b"\r\n")
        return b"\r\n".join(
            line for line in lines if not line.lower().startswith(name.encode() + b":")
        )


async def _read_head(reader: asyncio.StreamReader) -> _Head | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None  # the other side has ended the connection
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return _Head(first, {name.strip().lower(): value.strip() for name, _, value in pairs}, raw)


async def _pass_body(
    head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        while True:
            size = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            writer.write(size + chunk)
            await writer.drain()
            if len(chunk) == 2:
                return
    left = int(head.headers.get("content-length", "0"))
    while left:
        data = await reader.read(min(left, _LINE_LIMIT))
        if not data:
            raise ConnectionError("the body ended early")
        writer.write(data)
        await writer.drain()
        left -= len(data)


def operation_of(line: str, headers: dict[str, str]) -> tuple[str, str]:
    """Return the operation of a request and its key: `bucket/key`, or a listing's prefix.

    The operation is `GET`, `PUT`, `COPY`, `HEAD`, `LIST`, `DELETE`, `CREATE`, `PART`, `COMPLETE`
    or `ABORT`.
    """
    method, target, _ = line.split(" ", 2)
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    key = unquote(parts.path).lstrip("/")
    if method == "GET" and ("list-type" in query or "/" not in key.rstrip("/")):
        return "LIST", f"{key.rstrip('/')}/{query.get('prefix', [''])[0]}"
    if method == "POST":
        name = "DELETE" if "delete" in query else "CREATE" if "uploads" in query else "COMPLETE"
        return name, key
    if "uploadId" in query:
        return {"PUT": "PART", "DELETE": "ABORT"}.get(method, method), key
    return ("COPY" if "x-amz-copy-source" in headers else method), key


class Proxy:
    """Passes requests on. Each connection of a client has one to the server."""

    def __init__(self, port: int, latency_s: float) -> None:
        self._port, self._latency_s = port, latency_s
        self._log: list[tuple[int, str, str, int]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it ends the connection."""
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while (head := await _read_head(reader)) is not None:
                if head.line.startswith("GET /-/log "):
                    body, self._log = json.dumps(self._log).encode(), []
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                    writer.write(body)
                    await writer.drain()
                    continue
                if upstream is None:
                    upstream = await asyncio.open_connection(
                        "127.0.0.1", self._port, limit=_LINE_LIMIT
                    )
                if not await self._pass_on(head, reader, writer, *upstream):
                    break
        for one in (writer, *([upstream[1]] if upstream is not None else [])):
            one.close()

    async def _pass_on(
        self,
        head: _Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> bool:
        operation, key = operation_of(head.line, head.headers)
        self._log.append((time.time_ns() // 1_000_000, operation, key, 0))
        await asyncio.sleep(self._latency_s)
        if head.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
        server.write(head.without("expect"))
        await _pass_body(head, reader, server)
        await server.drain()
        answer = await _read_head(answers)
        if answer is None:
            return False
        writer.write(answer.raw)
        status = int(answer.line.split(" ")[1])
        if not head.line.startswith("HEAD ") and status not in _NO_BODY:
            await _pass_body(answer, answers, writer)
        await writer.drain()
        return answer.headers.get("connection", "").lower() != "close"


async def _main(port: int, latency_ms: float) -> None:
    proxy = Proxy(port, latency_ms / 1000)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_LINE_LIMIT)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency-ms", type=float, default=20)
    given = parser.parse_args()
    asyncio.run(_main(given.port, given.latency_ms))
