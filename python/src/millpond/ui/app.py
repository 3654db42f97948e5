"""The application of `millpond ui`: its pages, and the JSON that they ask for."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any

from millpond.errors import ErrorKind, InvalidInputError, MillpondError, error
from millpond.storage.given import given, reached_by
from millpond.ui import views
from millpond.ui.job_plan import job_plan
from millpond.ui.places import Place, find_places
from millpond.web.server import JSONResponse, Request, Response, Route, Starlette, application

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "pages.js": "text/javascript; charset=utf-8",
    "files.js": "text/javascript; charset=utf-8",
    "savepoints.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
# Pages ask every second; two of them, or ten, cost what one does.
_FRESH_S = 0.9
_MOST_BATCHES = 1000
# Those that read all rows of a place, or start a JVM: minutes, or hours.
_LONG = frozenset({"skew", "verify", "jobplan"})
_MOST_LONG = 4
_HINT = "Begin at the address that the server printed."
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
        " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class _Value:
    """A value, when it was made, and how many threads ask for it now."""

    def __init__(self) -> None:
        self.making = threading.Lock()
        self.asking = 0
        self.made: tuple[float, Any] = (-math.inf, None)

    def is_fresh(self) -> bool:
        return time.monotonic() - self.made[0] < _FRESH_S


class _Kept:
    """Values of the last second, by their name: one thread makes each, the others wait for it. It
    reaches the storages as the maker of this was told to.
    """

    def __init__(self) -> None:
        self._told = given()
        self._lock = threading.Lock()
        self._values: dict[object, _Value] = {}

    def get(self, name: object, make: Callable[[], Any]) -> Any:
        """Return the value of `name`: the kept one if it is fresh."""
        with self._lock:
            self._values = {n: v for n, v in self._values.items() if v.asking or v.is_fresh()}
            kept = self._values.setdefault(name, _Value())
            kept.asking += 1
        try:
            with kept.making:
                if not kept.is_fresh():
                    with reached_by(self._told):
                        value = make()
                    kept.made = (time.monotonic(), value)
                return kept.made[1]
        finally:
            with self._lock:
                kept.asking -= 1


class _Long:
    """Work that takes long, on threads of its own: the other pages do not wait behind it. Who asks
    for what is under way gets the same answer, and keeps no thread.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST_LONG, thread_name_prefix="millpond-long")
        self._lock = threading.Lock()
        self._under_way: dict[object, Future[Any]] = {}

    async def answer(self, name: object, make: Callable[[], Any]) -> Any:
        """Return what `make` returns. Raises: UnavailableError: TOO_MANY_REQUESTS."""
        with self._lock:
            work = self._under_way.get(name)
            if work is None:
                if len(self._under_way) >= _MOST_LONG:
                    raise error(
                        ErrorKind.TOO_MANY_REQUESTS,
                        f"{_MOST_LONG} pages that take long are being made",
                        hint="Ask again when one of them is there.",
                    )
                work = self._under_way[name] = self._pool.submit(self._made, name, make)
        # others may wait for it when this request is given up
        return await asyncio.shield(asyncio.wrap_future(work))

    def _made(self, name: object, make: Callable[[], Any]) -> Any:
        try:
            return make()
        finally:
            with self._lock:
                del self._under_way[name]

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()


class _Pages:
    def __init__(self, paths: Sequence[str], job: str) -> None:
        self._paths, self._job = paths, job
        self._kept = _Kept()
        self._known: dict[str, Place] = {}

    def places(self) -> list[Place]:
        """Return what is at the paths now. On an object storage that lists all that is there."""
        found: list[Place] = self._kept.get("places", lambda: find_places(self._paths))
        self._known = {place.id: place for place in found}
        return found

    def place(self, request: Request) -> Place:
        wanted = request.path_params["place"]
        known = self._known  # another thread may put others in its place
        if wanted not in known:
            known = {place.id: place for place in self.places()}
        if wanted not in known:
            raise _gone()
        return known[wanted]

    def pulse(self, place: Place) -> Any:
        """Return the last committed batch."""
        batch = views.newest_batch(place)
        if batch is None and place not in self.places():
            raise _gone()
        return {"batch": batch}

    def answer(self, request: Request) -> Any:
        """Return the JSON of a page."""
        place, what = self.place(request), request.path_params["what"]
        given = request.query_params
        if place.kind == "unreadable":
            raise InvalidInputError(place.problem, kind=ErrorKind(place.code), hint=place.hint)
        name: object = (place.id, what)
        make: Callable[[], Any]
        if what in _VIEWS:
            make = partial(_VIEWS[what], place)
        elif what == "rescale":
            partitions = _number(given.get("partitions", ""))
            name = (place.id, what, partitions)
            make = partial(views.rescale, place, partitions)
        elif what == "jobplan":
            make = partial(self._job_plan, place)
        elif what == "pulse":
            make = partial(self.pulse, place)
        elif what == "saved":
            make = partial(self._beside_others, views.saved, place)
        elif what == "savepoints":
            make = partial(self._beside_others, views.savepoints, place)
        elif what == "history":
            last = min(_MOST_BATCHES, _number(given.get("last", str(_MOST_BATCHES))))
            name = (place.id, what, last)
            make = partial(views.history, place, last)
        elif what == "store":
            of = _number(given.get("operator", "")), _number(given.get("partition", ""))
            store = given.get("store", "default")
            name = (place.id, what, of, store)
            make = partial(views.store, place, *of, store)
        else:
            raise InvalidInputError("no such page", hint=_HINT)
        return self._kept.get(name, make)

    def _beside_others(self, view: Callable[[Place, list[Place]], Any], place: Place) -> Any:
        return view(place, self.places())

    def _job_plan(self, place: Place) -> Any:
        if not self._job:
            raise InvalidInputError(
                "no job was given",
                kind=ErrorKind.INVALID_ARGUMENT,
                hint="Start `millpond ui` with --job JOB.PY.",
            )
        return job_plan(place.path, self._job, given().options)


_VIEWS: dict[str, Callable[[Place], Any]] = {
    "glance": views.glance,
    "query": views.query,
    "groups": views.groups,
    "storage": views.storage,
    "skew": views.skew,
    "verify": views.verified,
}


def _gone() -> MillpondError:
    return InvalidInputError("no such place: it may have been deleted", hint="Reload the page.")


def ui_app(paths: Sequence[str], *, job: str = "") -> Starlette:
    """Return the application. It reaches the storages by the options that its caller was given.

    Args:
        paths: of Spark checkpoints, savepoints and directories of them.
        job: which may be asked what it would do with a savepoint, as `savepoint plan --job` takes
            it; "": none.
    """
    pages, long = _Pages(paths, job), _Long()

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            long.close()

    async def index(request: Request) -> Response:
        return _static("index.html")

    async def static(request: Request) -> Response:
        return _static(request.path_params["name"])

    async def places(request: Request) -> Response:
        found = await asyncio.to_thread(pages.places)
        body = {"places": [asdict(place) for place in found], "job": job}
        return JSONResponse(body, headers=_SECURITY)

    async def page(request: Request) -> Response:
        make, what = partial(pages.answer, request), request.path_params["what"]
        if what in _LONG:
            found = await long.answer((request.path_params["place"], what), make)
        else:
            found = await asyncio.to_thread(make)
        return JSONResponse(found, headers=_SECURITY)

    return application(
        [
            Route("/", index),
            Route("/static/{name}", static),
            Route("/api/places", places),
            Route("/api/{place}/{what}", page),
        ],
        lifespan=running,
    )


def _static(name: str) -> Response:
    if name not in _TYPES:
        raise InvalidInputError("no such page", hint=_HINT)
    body = (files("millpond.ui") / "static" / name).read_bytes()
    return Response(body, media_type=_TYPES[name], headers=_SECURITY)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidInputError(
            f"{text!r} is no number",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Write a whole number, from 0 on.",
        )
    return int(text)
