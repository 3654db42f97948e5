"""Runs a real S3 server over HTTP: moto, on loopback at a free port.

A middleware counts requests and injects faults. S3 checks and writes in one step (`If-None-Match`).
moto checks first, then writes. So the middleware lets in one writing request at a time.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from millpond.config import resolve
from millpond.storage.retry import Retry
from millpond.storage.s3 import S3Storage
from millpond.storage.s3_client import S3Client
from millpond.storage.settings import StorageSettings, storage_settings

HADOOP = {
    "fs.s3a.access.key": "test",
    "fs.s3a.secret.key": "the secret of the test",
    "fs.s3a.endpoint.region": "us-east-1",
}


def instant_retry(deadline_ms: int = 60_000) -> Retry:
    """Return a retry whose clock moves only by its own pauses. Each one is the longest allowed."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return Retry(deadline_ms, clock=lambda: now[0], sleep=sleep, chance=lambda: 0.999)


@dataclass(frozen=True)
class Request:
    """One request, as a fault sees it.

    number: counts from 1, since the fault was set.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    number: int

    @property
    def operation(self) -> str:
        """Return `GET`, `PUT`, `COPY`, `HEAD`, `LIST` or `DELETE`.

        For a multipart upload: `CREATE`, `PART`, `COMPLETE` or `ABORT`.
        """
        if self.method == "POST":
            return (
                "DELETE"
                if "delete" in self.query
                else "CREATE"
                if "uploads" in self.query
                else "COMPLETE"
            )
        if "uploadId" in self.query:
            return {"PUT": "PART", "DELETE": "ABORT"}[self.method]
        if self.method == "PUT" and any(
            name.lower() == "x-amz-copy-source" for name in self.headers
        ):
            return "COPY"
        return "LIST" if "list-type" in self.query else self.method


@dataclass(frozen=True)
class Fault:
    """What happens to a request.

    code, status: the answer instead of the server's own. Status 0: the connection breaks.
    applied: before that, the server does what it was asked.
    cut: the answer's body ends this many bytes early. With `flip` one byte of it is wrong instead.
    html: the answer is a web page.
    late_s: the answer comes this much later. The server waits before it does anything. With
    `applied` it waits after it has done it, with `cut` in the middle of the body. With status 200
    the answer is the server's own in the end.
    """

    status: int = 0
    code: str = ""
    applied: bool = False
    cut: int = 0
    flip: bool = False
    html: bool = False
    late_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


Chooser = Callable[[Request], Fault | None]

RESET, ERROR, SLOW_DOWN = Fault(), Fault(500, "InternalError"), Fault(503, "SlowDown")
LOST = Fault(applied=True)  # the server did it, and the connection broke before the answer
LOST_500 = Fault(500, "InternalError", applied=True)
NO_BODY = Fault(204)  # all went well, and nothing is said


def first(count: int, fault: Fault, *operations: str) -> Chooser:
    """Let the first `count` requests of these operations meet the fault.

    None named: all operations.
    """
    seen = itertools.count(1)

    def choose(request: Request) -> Fault | None:
        return (
            fault
            if (not operations or request.operation in operations) and next(seen) <= count
            else None
        )

    return choose


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which boto3 reaches a server of the tests."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": HADOOP["fs.s3a.access.key"],
        "AWS_SECRET_ACCESS_KEY": HADOOP["fs.s3a.secret.key"],
        "AWS_REGION": HADOOP["fs.s3a.endpoint.region"],
    }


@dataclass
class S3Server:
    """The running server."""

    endpoint: str = ""
    latency_s: float = 0.0
    ignores_conditions: bool = False  # some servers ignore them
    # When every upload in parts began, as moto says it.
    uploads_began_ms: int = 1_289_422_113_000
    in_flight: int = 0
    most_in_flight: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    log: list[Request] = field(default_factory=list)
    _chooser: Chooser | None = None
    _writes: threading.Lock = field(default_factory=threading.Lock)
    _numbers: threading.Lock = field(default_factory=threading.Lock)
    _number: int = 0

    @contextmanager
    def faults(self, chooser: Chooser) -> Iterator[None]:
        """Ask `chooser` about each request while the block runs."""
        self._chooser, self._number = chooser, 0
        try:
            yield
        finally:
            self._chooser = None

    def client(self, region: str = "us-east-1") -> Any:
        """Return boto3's own client."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=region,
            aws_access_key_id=HADOOP["fs.s3a.access.key"],
            aws_secret_access_key=HADOOP["fs.s3a.secret.key"],
        )

    def bucket(self, region: str = "us-east-1") -> str:
        """Make a bucket and return its name."""
        name = f"b-{uuid.uuid4().hex}"
        client = self.client(region)
        place: Any = (
            {}
            if region == "us-east-1"
            else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        )
        client.create_bucket(Bucket=name, **place)
        return name

    def environment(self) -> dict[str, str]:
        """Return the variables by which commands reach the server."""
        return environment(self.endpoint)

    def settings(self, **options: object) -> StorageSettings:
        """Return settings that reach this server.

        Args:
            options: by short name, with `_` for `.`.
        """
        given = {name.replace("_", "."): value for name, value in options.items()}
        return storage_settings(resolve({"storage.s3.endpoint": self.endpoint, **given}), HADOOP)

    def storage(
        self, bucket: str, prefix: str = "", *, client: S3Client | None = None, **changes: Any
    ) -> S3Storage:
        """Return a storage on this server whose pauses take no time.

        Args:
            changes: fields of `S3Settings`.
        """
        settings = replace(self.settings().s3, **changes)
        return S3Storage(bucket, prefix, settings, retry=instant_retry(), client=client)

    # ---- WSGI

    def wrap(self, application: Any) -> Any:
        """Return the application wrapped with counting and faults."""

        def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            request = self._note(environ)
            if self.ignores_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if self.latency_s:
                with self._numbers:
                    self.in_flight += 1
                    self.most_in_flight = max(self.most_in_flight, self.in_flight)
                time.sleep(self.latency_s)
                with self._numbers:
                    self.in_flight -= 1
            fault = self._chooser(request) if self._chooser is not None else None
            if fault is not None and fault.late_s and not (fault.applied or fault.cut):
                time.sleep(fault.late_s)
            if fault is None or (fault.status == 200 and not fault.html):
                return self._run(application, environ, start_response)
            if fault.applied or fault.cut or fault.flip:
                answer: list[Any] = []
                body = b"".join(self._run(application, environ, lambda *a: answer.extend(a[:2])))
                if fault.cut or fault.flip:
                    damaged = body[: -fault.cut] if fault.cut else bytes([body[0] ^ 1]) + body[1:]
                    start_response(*answer)
                    return _cut(environ, damaged, fault.late_s) if fault.cut else [damaged]
                time.sleep(fault.late_s)
            else:
                # A server reads the whole body before it refuses a request. Otherwise the network
                # would reset the connection.
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            if fault.status == 0:
                _break(environ)
            text = f"<Error><Code>{fault.code}</Code><Message>a fault of the test</Message></Error>"
            if fault.html:
                text = "<!doctype html><html><body>A web page<br></body></html>"
            body = (
                b"" if request.method == "HEAD" or not (fault.code or fault.html) else text.encode()
            )
            start_response(
                f"{fault.status} Fault", [("Content-Length", str(len(body))), *fault.headers]
            )
            return [body]

        return serve

    def _note(self, environ: dict[str, Any]) -> Request:
        with self._numbers:
            self._number += 1
            headers = {
                name[5:].replace("_", "-").lower(): v
                for name, v in environ.items()
                if name.startswith("HTTP_")
            }
            request = Request(
                environ["REQUEST_METHOD"],
                environ["PATH_INFO"],
                environ.get("QUERY_STRING", ""),
                headers,
                self._number,
            )
            self.counts[request.operation] += 1
            self.log.append(request)
            return request

    def _run(
        self, application: Any, environ: dict[str, Any], start_response: Any
    ) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            result: Iterable[bytes] = application(environ, start_response)
            return result
        with self._writes:
            return list(application(environ, start_response))


def _cut(environ: dict[str, Any], data: bytes, late_s: float) -> Iterator[bytes]:
    """Yield a part of a body. Then send nothing more, and break the connection."""
    yield data
    time.sleep(late_s)
    _break(environ)


def _break(environ: dict[str, Any]) -> NoReturn:
    # With an exception alone, the connection would stay open for the next request.
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("a fault of the test")


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run a server in threads of this process."""
    from moto import settings
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:
            """Log nothing: `S3Server.log` has the requests."""

    server = S3Server()
    settings.S3_UPLOAD_PART_MIN_SIZE = 1
    application = server.wrap(DomainDispatcherApplication(create_backend_app))
    http = make_server(host, 0, application, threaded=True, request_handler=Quiet)
    server.endpoint = f"http://{host}:{http.server_port}"
    thread = threading.Thread(
        target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
