"""What obstore asks of Azure's Blob service, on loopback, with faults. `make peer-azurite` has a
whole emulator.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from millpond.storage import azure_client

ACCOUNT = "account"
HOST = f"{ACCOUNT}.dfs.core.windows.net"
KEY = "a2V5"

# What a fault does with a request: None, or a status and a code. It may also raise LostAnswer.
Fault = Callable[[str, str], tuple[int, str] | None]


def know_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this machine's credentials, and the session of another test of this process, away."""
    for name in azure_client._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setattr("millpond.storage.hadoop_jvm.running_class", lambda name: None)


class LostAnswerError(Exception):
    """The service does what it is asked, and the answer gets lost."""


class AzureServer:
    """Blobs of one container, by name: their bytes, and what is said of them (x-ms-meta-)."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.requests: list[str] = []
        self.fault: Fault = lambda method, name: None
        self.lock = threading.Lock()
        self.port = 0

    @property
    def hadoop(self) -> dict[str, str]:
        """Hadoop's settings that reach it."""
        return {
            "fs.azure.abfs.endpoint": f"127.0.0.1:{self.port}",
            "fs.azure.always.use.https": "false",
            f"fs.azure.account.key.{HOST}": KEY,
        }

    @contextmanager
    def running(self) -> Iterator[AzureServer]:
        """Serve until the end of the block."""
        here = self

        class Handler(_Handler):
            azure = here

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one packet
    azure: AzureServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._handle()

    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET

    def _handle(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        _, account, container, name = [*unquote(url.path).split("/", 3), ""][:4]
        assert (account, container) == (ACCOUNT, "container")
        azure = self.azure
        with azure.lock:
            azure.requests.append(f"{self.command} {name}")
            try:
                refused = azure.fault(self.command, name)
                lost = False
            except LostAnswerError:
                refused, lost = None, True
            if refused is not None:
                self._refuse(*refused)
                return
            status, headers, data = self._answer(name, parse_qs(url.query), body)
        if lost:
            self.close_connection = True
            return
        if status >= 400:
            self._refuse(status, data.decode())
            return
        self._send(status, headers, data)

    def _answer(
        self, name: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        blobs = self.azure.blobs
        if query.get("comp") == ["list"]:
            prefix = query.get("prefix", [""])[0]
            names = sorted(found for found in blobs if found.startswith(prefix))
            entries = "".join(
                f"<Blob><Name>{escape(found)}</Name><Properties>"
                f"<Last-Modified>{formatdate(usegmt=True)}</Last-Modified>"
                f"<Content-Length>{len(blobs[found][0])}</Content-Length>"
                f"<Content-Type>x/y</Content-Type><Etag>{_tag(blobs[found][0])}</Etag>"
                "</Properties></Blob>"
                for found in names
            )
            text = f"<EnumerationResults><Blobs>{entries}</Blobs><NextMarker/></EnumerationResults>"
            return 200, {}, text.encode()
        if query.get("comp") == ["batch"]:
            return self._delete_all(body)
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and name in blobs:
                return 409, {}, b"BlobAlreadyExists"
            said = {
                key.lower(): value
                for key, value in self.headers.items()
                if key.lower().startswith("x-ms-meta-")
            }
            blobs[name] = body, said
            return 201, {"ETag": _tag(body)}, b""
        if name not in blobs:
            return 404, {}, b"BlobNotFound"
        data, said = blobs[name]
        if self.command == "DELETE":
            del blobs[name]
            return 202, {}, b""
        headers = {**said, "ETag": _tag(data), "Last-Modified": formatdate(usegmt=True)}
        wanted = self.headers.get("x-ms-range") or self.headers.get("Range")
        if wanted is None:
            return 200, headers, data
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        assert found is not None, wanted
        start, end = int(found[1]), min(int(found[2]) + 1, len(data))
        if start >= len(data):
            return 416, {}, b"InvalidRange"
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return 206, headers, data[start:end]

    def _delete_all(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Answer a request of many requests."""
        parts = []
        for number, path in enumerate(re.findall(rb"DELETE ([^ ?]+)\S* HTTP", body)):
            name = unquote(path.decode()).split("/", 3)[3]
            refused = self.azure.fault("DELETE", name)
            if refused is None and self.azure.blobs.pop(name, None) is None:
                refused = 404, "BlobNotFound"
            said = "202 Accepted\r\n"
            if refused is not None:
                said = f"{refused[0]} No\r\nx-ms-error-code: {refused[1]}\r\n"
            parts.append(
                "--batch\r\nContent-Type: application/http\r\n"
                f"Content-ID: {number}\r\n\r\nHTTP/1.1 {said}x-ms-request-id: 1\r\n\r\n"
            )
        text = "".join(parts) + "--batch--\r\n"
        return 202, {"Content-Type": "multipart/mixed; boundary=batch"}, text.encode()

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>It says no.\nMore.</Message></Error>"
        self._send(status, {}, text.encode())

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _tag(data: bytes) -> str:
    return f'"{hash(data) & 0xFFFFFFFF:x}"'
