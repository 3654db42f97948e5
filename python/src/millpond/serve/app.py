"""The paths that `millpond serve` answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from millpond.errors import ErrorKind, MillpondError, UnavailableError, error
from millpond.serve.following import Following
from millpond.serve.lookups import (
    ARROW,
    JSON,
    Answer,
    Limits,
    Question,
    answer,
    question_of_body,
    question_of_query,
    tables,
)
from millpond.serve.openapi import document
from millpond.web.server import (
    JSONResponse,
    Request,
    Response,
    Route,
    Starlette,
    application,
)

T = TypeVar("T")

_THREADS = 16  # those that wait for the storage keep none of the others waiting
STALE_MS = 10_000  # without a look that succeeds, the answers may be old: /healthz says so
_PREVENT_CACHES = {"Cache-Control": "no-store"}


def serve_app(following: Following, limits: Limits) -> Starlette:
    """Return the application. It starts `following`; who runs it stops that."""
    return _Answers(following, limits).app()


@dataclass(frozen=True, slots=True)
class Path:
    """A path: how it is asked, and who answers."""

    path: str
    method: str
    run: Callable[[Request], Awaitable[Response]]


class _Answers:
    def __init__(self, following: Following, limits: Limits) -> None:
        self._following = following
        self._limits = limits
        self._busy = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="millpond-lookup")

    def app(self) -> Starlette:
        paths = (
            Path("/v1/lookup", "GET", self._get),
            Path("/v1/lookup", "POST", self._post),
            Path("/v1/tables", "GET", self._tables),
            Path("/healthz", "GET", self._health),
            Path("/openapi.json", "GET", self._openapi),
        )
        routes = [Route(p.path, p.run, methods=[p.method]) for p in paths]
        return application(routes, lifespan=self._running)

    @asynccontextmanager
    async def _running(self, app: Starlette) -> AsyncIterator[None]:
        self._following.start()
        try:
            yield
        finally:
            self._pool.shutdown()

    # ---- paths

    async def _get(self, request: Request) -> Response:
        with self._counted():
            question = question_of_query(request.query_params.multi_items())
            return await self._answered(request, question)

    async def _post(self, request: Request) -> Response:
        with self._counted():
            question = question_of_body(await self._body(request), self._limits)
            return await self._answered(request, question)

    async def _tables(self, request: Request) -> Response:
        with self._counted():
            return JSONResponse(await self._apart(lambda: tables(self._following)))

    async def _health(self, request: Request) -> Response:
        following = self._following
        with following.held() as held:
            batch, time_ms = held.batch, held.batch_time_ms
        problem = following.problem
        if problem is None and following.looked_ms_ago > STALE_MS + following.every_ms:
            problem = UnavailableError(
                "the last look for a new batch takes long",
                hint="Look at the storage, and at the server's processor time.",
            )
        told = {
            "status": "ok" if problem is None else "stale",
            "batch": batch,
            "batch_time_ms": time_ms,
            "age_ms": max(0, time.time_ns() // 1_000_000 - time_ms),
            "looked_ms_ago": following.looked_ms_ago,
            "follows": following.follows,
            "problem": None if problem is None else _told(problem),
        }
        return JSONResponse(told, 200 if problem is None else 503, _PREVENT_CACHES)

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(document(self._limits))

    # ---- how

    async def _answered(self, request: Request, question: Question) -> Response:
        form = ARROW if _wants_arrow(request.headers.get("accept", "")) else JSON
        found = await self._apart(lambda: self._look_up(question, form))
        headers = {
            "Millpond-Batch": str(found.batch),
            "Millpond-Batch-Time-Ms": str(found.batch_time_ms),
            "Vary": "Accept",
            **_PREVENT_CACHES,
        }
        return Response(found.content, media_type=form, headers=headers)

    def _look_up(self, question: Question, form: str) -> Answer:
        tries = 0
        while True:
            tries += 1
            with self._following.held() as held:
                try:
                    return answer(held, question, self._limits, form)
                except MillpondError as e:
                    if not self._following.again(held, e, tries):
                        raise

    async def _apart(self, call: Callable[[], T]) -> T:
        """Run a call in a thread: it may wait for the storage."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._busy >= self._limits.requests:
            raise error(
                ErrorKind.TOO_MANY_REQUESTS,
                f"{self._limits.requests} requests are under way, and the server allows no more",
                hint="Wait for an answer; ask for many keys in one request; `millpond serve"
                " --max-requests` sets the limit.",
            )
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    async def _body(self, request: Request) -> bytes:
        most = self._limits.body_bytes
        declared = request.headers.get("content-length", "")
        body = bytearray()
        if not declared.isdecimal() or int(declared) <= most:
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    break
            else:
                return bytes(body)
        raise error(
            ErrorKind.REQUEST_TOO_LARGE,
            f"the body has more than {most} bytes",
            hint="Ask for fewer keys at once; `millpond serve --max-body-bytes` sets the limit.",
        )


def _told(e: MillpondError) -> dict[str, str]:
    return {"code": e.kind.value, "message": e.message, "hint": e.hint}


def _wants_arrow(accept: str) -> bool:
    """Whether a request asks for Arrow: JSON is the answer to all others."""
    return any(part.partition(";")[0].strip().lower() == ARROW for part in accept.split(","))
