"""Runs a web application with a token in front of it. Errors are JSON, with code and hint.

The only module that imports starlette and uvicorn. Needs the extra `ui`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse as PlainJSONResponse
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InternalError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    error,
)

# What applications need of Starlette is here too: the rooms above import nothing of it.
__all__ = [
    "JSONResponse",
    "Request",
    "Response",
    "Route",
    "Starlette",
    "TokenGate",
    "application",
    "error_response",
    "run",
]

log = logging.getLogger(__name__)

_AS_GIVEN = ("utf-8", "surrogateescape")  # a token's bytes
_NO_TEXT = re.compile("[\ud800-\udfff]")  # a byte in the name of a file, as Python has it
_STOP_SECONDS = 5  # how long requests that are under way may take when the server stops
_STATUS_OF_KIND = {
    ErrorKind.TOKEN_WRONG: 401,
    ErrorKind.REQUEST_TOO_LARGE: 413,
    ErrorKind.TOO_MANY_REQUESTS: 429,
}
_STATUS_OF_CLASS: tuple[tuple[type[MillpondError], int], ...] = (
    (NotFoundError, 404),
    (InvalidInputError, 400),
    (UnsupportedError, 400),
    (ConflictError, 409),
    (UnavailableError, 503),
)


class JSONResponse(PlainJSONResponse):
    """JSON in which bytes that are no text are shown as Python writes them: `\\udce9`."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return _NO_TEXT.sub(lambda match: rf"\\u{ord(match[0]):04x}", text).encode()


def application(
    routes: Sequence[BaseRoute], *, lifespan: Lifespan[Starlette] | None = None
) -> Starlette:
    """Return an application whose errors are JSON: `{"error": {"code", "message", "hint"}}`.

    Args:
        lifespan: an asynchronous context that is open while the application runs.
    """
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: _http_error,
            MillpondError: _millpond_error,
            Exception: _defect,
        },
    )


def error_response(e: MillpondError, status: int | None = None) -> JSONResponse:
    """Return the answer that tells an error.

    Args:
        status: of HTTP; None: as the kind and the class of the error say.
    """
    if status is None:
        status = _STATUS_OF_KIND.get(e.kind) or next(
            (code for kind, code in _STATUS_OF_CLASS if isinstance(e, kind)), 500
        )
    told = {"code": e.kind.value, "message": e.message, "hint": e.hint}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = "1"
    return JSONResponse({"error": told}, status, headers)


class TokenGate:
    """Lets requests through that have the token, to a host that is meant.

    The token comes as `Authorization: Bearer <token>`. For a browser, a GET with `?token=<token>`
    sets a cookie and leads to the same place below `/<secret>/`, without the token. There alone the
    cookie counts, and the browser sends it: cookies know no ports, and another user's server on
    this host would get one for `/`. All other requests get 401. A
    `Host` that is neither an IP address nor in `hosts` gets 421: a page of another site could have
    its name resolved to this machine. What the application raises and does not answer becomes a
    500; the log then has the place in the code alone, no text of the error.

    Args:
        hosts: names, in lower case, beside `localhost`.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._token = _digest(token)
        # The same after a restart with the same token, so that open pages go on.
        self._below = "/" + hmac.digest(token.encode(*_AS_GIVEN), b"path", "sha256").hex()[:32]
        self._hosts = frozenset((*hosts, "localhost"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI demands it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(f"{self._below}/"):
            scope = {**scope, "root_path": self._below}
        answer = self._refusal(scope)
        if answer is not None:
            await answer(scope, receive, send)
            return
        begun = ended = False

        async def watched(message: Message) -> None:
            nonlocal begun, ended
            begun = True
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as e:
            place = traceback.extract_tb(e.__traceback__)[-1]
            log.error("%s at %s:%s", type(e).__name__, place.filename, place.lineno)
            if not begun:
                await _defect(HTTPConnection(scope), e)(scope, receive, send)
            elif not ended:
                raise ConnectionAbortedError("the answer was under way") from None

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that goes no further; None: it goes on."""
        request = HTTPConnection(scope)
        if not _is_meant(request.headers.get("host", ""), self._hosts):
            wrong = InvalidInputError(
                "the request is for a host name that this server does not know",
                hint="Use the address that the server printed, or name the host when it starts.",
            )
            return error_response(wrong, 421)
        cookie = f"millpond-{(scope.get('server') or ('', 0))[1]}"  # cookies know no ports
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return None
        below = scope.get("root_path") == self._below
        if below and self._is_token(request.cookies.get(cookie, "")):
            return None
        query = parse_qsl(request.url.query, keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if scope["method"] != "GET" or not given or not self._is_token(given[-1]):
            return error_response(error(ErrorKind.TOKEN_WRONG, "the token is missing or wrong"))
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = scope["path"].removeprefix(self._below if below else "")
        place = f"{self._below}/{path.lstrip('/')}" + (f"?{rest}" if rest else "")
        answer = RedirectResponse(place, 303, {"Cache-Control": "no-store"})
        path = f"{self._below}/"
        answer.set_cookie(cookie, given[-1], httponly=True, samesite="strict", path=path)
        return answer

    def _is_token(self, given: str) -> bool:
        # Digests have one length: the time that this takes tells nothing.
        return hmac.compare_digest(_digest(given), self._token)


def run(
    app: Starlette,
    *,
    host: str,
    port: int,
    token: str,
    announce: Callable[[str], None],
    hosts: Collection[str] = (),
    close: Callable[[], bool] = lambda: True,
) -> bool:
    """Serve an application until SIGTERM or SIGINT; then finish what is under way, and return.

    What takes longer than some seconds then is not finished: the process ends. Further signals
    change nothing: who presses Ctrl-C again gets the same end.

    Args:
        host: a name or an address of this machine.
        port: 0: any that is free.
        token: what requests must have.
        announce: is called with the address (`http://127.0.0.1:8080`), without the token, once the
            server listens.
        hosts: names by which clients may call the server, beside `host` and `localhost`.
        close: ends what works beside requests; it is called in any case, after the last request.
    Returns: what `close` returned.
    Raises: InvalidInputError: INVALID_ARGUMENT: it cannot listen there.
    """
    names = {name.lower() for name in (host, *hosts)}
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        TokenGate(app, token=token, hosts=names),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # paths have keys
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    server = _Server(config, lambda bound: announce(f"http://{shown}:{bound}"))
    with _signals(server):
        try:
            with _listening(host, port) as listener:
                server.run(sockets=[listener])
            server.ended()
        finally:
            closed = close()
    return closed


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[int], None]) -> None:
        super().__init__(config)
        self._announce = started
        self._end: threading.Timer | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._announce(sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # At a second one uvicorn would drop the requests, and not end the application's lifespan.
        if self._end is None:
            super().handle_exit(sig, frame)
            # Python waits for threads at its end. One may read a large state for hours.
            self._end = threading.Timer(_STOP_SECONDS + 1, os._exit, (0,))
            self._end.daemon = True
            self._end.start()

    def ended(self) -> None:
        """Note that no thread keeps the process from its end."""
        if self._end is not None:
            self._end.cancel()


@contextmanager
def _signals(server: uvicorn.Server) -> Iterator[None]:
    """End the process in order by signals. uvicorn raises them again when it has stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may
        return

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as e:
        raise InvalidInputError(
            f"cannot listen at {host}, port {port}: {e}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Name an address of this machine, and a port that is free; 0 takes any.",
        ) from e
    with listener:
        yield listener


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(*_AS_GIVEN)).digest()


def _is_meant(host: str, names: Collection[str]) -> bool:
    """Whether the header `Host` has an IP address, or one of the names."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    name = name.lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _http_error(request: Request, e: Exception) -> Response:
    """Answer what Starlette itself refuses: an unknown path, or another method."""
    assert isinstance(e, HTTPException)
    what = "no such path" if e.status_code == 404 else e.detail.lower()
    told = InvalidInputError(what, hint="/openapi.json says what is served, if the server has it.")
    answer = error_response(told, e.status_code)
    answer.headers.update(e.headers or {})
    return answer


def _millpond_error(request: Request, e: Exception) -> Response:
    assert isinstance(e, MillpondError)
    return error_response(e)


def _defect(request: HTTPConnection, e: Exception) -> Response:
    """Answer what nobody caught. Starlette sends it, and raises the exception further: to the gate.

    The text of the exception may have rows: it is not told.
    """
    bug = InternalError(
        f"{type(e).__name__} in the server",
        hint="Report it with the line that the server has logged.",
    )
    return error_response(bug)
