"""The server of web applications: who gets through, what errors look like, how it ends."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from integration.depth import quick_first
from millpond import web
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError, error
from millpond.web.server import (
    JSONResponse,
    Request,
    Response,
    Route,
    Starlette,
    TokenGate,
    application,
    run,
)
from tests.asgi import Answer, ask

TOKEN = "a-token-that-nobody-guesses"
BEARER = {"authorization": f"Bearer {TOKEN}"}


async def _told(request: Request) -> Response:
    return JSONResponse({"path": request.url.path, "query": request.url.query})


async def _fails(request: Request) -> Response:
    raise ValueError("a secret row")


async def _refuses(request: Request) -> Response:
    raise error(ErrorKind[request.path_params["kind"]], "what happened", hint="Do this.")


async def _works(request: Request) -> Response:
    def work() -> None:
        print("at work", flush=True)
        time.sleep(300)

    await asyncio.to_thread(work)
    return JSONResponse({})


async def _interrupted(request: Request) -> Response:
    """A user presses Ctrl-C twice while a thread works."""
    loop, main = asyncio.get_running_loop(), threading.main_thread()

    def work() -> None:
        for _ in range(2):
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGINT)
            handled = threading.Event()
            loop.call_soon_threadsafe(handled.set)
            handled.wait()

    await asyncio.to_thread(work)
    return JSONResponse({"worked": "to its end"})


@asynccontextmanager
async def _running(app: Starlette) -> AsyncIterator[None]:
    yield
    print("the application has ended", flush=True)


APP = application(
    [
        Route("/", _told),
        Route("/fails", _fails),
        Route("/refuses/{kind}", _refuses),
        Route("/works", _works),
        Route("/interrupted", _interrupted),
    ],
    lifespan=_running,
)
GATE = TokenGate(APP, token=TOKEN, hosts={"pond"})


def _code(answer: Answer) -> str:
    told = answer.json()["error"]
    assert set(told) == {"code", "message", "hint"}
    assert told["hint"]
    return str(told["code"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer \xff\xfe"},
        {"cookie": "millpond-8080=wrong"},
        {"cookie": f"millpond-9090={TOKEN}"},
        {"cookie": "=;;; \x01"},
    ],
)
def test_without_the_token_nothing_is_told(headers: dict[str, str]) -> None:
    for url in ("/", "/nowhere", "/?token=wrong"):
        answer = ask(GATE, url, headers=headers)
        assert (answer.status, _code(answer)) == (401, "TOKEN_WRONG")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN.encode() not in answer.body


def test_the_token_in_a_header_lets_through() -> None:
    assert ask(GATE, "/?a=1", headers=BEARER).json() == {"path": "/", "query": "a=1"}
    assert ask(GATE, "/", headers={"authorization": f"bearer  {TOKEN} "}).status == 200


def test_a_browser_gets_a_cookie_and_an_address_without_the_token() -> None:
    answer = ask(GATE, f"/?a=1&token={TOKEN}&b=x%26y")
    place = answer.headers["location"]
    assert answer.status == 303 and re.fullmatch(r"/[0-9a-f]{32}/\?a=1&b=x%26y", place)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    headers = {"cookie": "x=1; " + cookie.partition(";")[0]}
    assert ask(GATE, place, headers=headers).json()["query"] == "a=1&b=x%26y"
    evil = ask(GATE, f"//evil.example/?token={TOKEN}").headers["location"]
    assert re.fullmatch(r"/[0-9a-f]{32}/evil.example/", evil)
    assert ask(GATE, f"/?token={TOKEN}", method="POST").status == 401


def test_a_browser_sends_the_cookie_to_no_other_server_of_the_host() -> None:
    """Cookies know no ports: of all servers of a host, a browser asks one alone below this path."""
    answer = ask(GATE, f"/?token={TOKEN}")
    place = answer.headers["location"]
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert f"Path={place}" in attributes and len(place) > 30
    assert ask(GATE, place, headers={"cookie": cookie}).json()["path"] == place
    assert ask(GATE, f"{place}fails", headers={"cookie": cookie}).status == 500
    for elsewhere in ("/", place[:-1], f"/x{place}", place[:-2] + "x/"):
        assert ask(GATE, elsewhere, headers={"cookie": cookie}).status == 401
    assert ask(GATE, place).status == 401 and ask(GATE, place, headers=BEARER).status == 200
    again = ask(GATE, f"{place}?token={TOKEN}")  # a bookmark of before
    assert again.headers["location"] == place
    other = TokenGate(APP, token=TOKEN + "x")
    assert ask(other, f"/?token={TOKEN}x").headers["location"] != place


@pytest.mark.parametrize("other", ['theme={"dark": true}', "path=/x", "a b=c", "=", "only", 'x="'])
def test_cookies_of_other_servers_on_this_machine_do_no_harm(other: str) -> None:
    """Cookies know no ports: a browser sends those of every other program on 127.0.0.1, too. With
    one that Python's own parser refuses, the token was never found.
    """
    answer = ask(GATE, f"/?token={TOKEN}")
    place, cookie = answer.headers["location"], answer.headers["set-cookie"].partition(";")[0]
    for header in (f"{other}; {cookie}", f"{cookie}; {other}"):
        assert ask(GATE, place, headers={"cookie": header}).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("10.1.2.3:80", 200),
        ("[::1]:8080", 200),
        ("LocalHost:8080", 200),
        ("pond", 200),
        ("pond:8080", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("", 421),
    ],
)
def test_the_name_of_another_host_is_refused(host: str, status: int) -> None:
    answer = ask(GATE, "/", headers={**BEARER, "host": host})
    assert answer.status == status
    if status != 200:
        assert _code(answer) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("REQUEST_TOO_LARGE", 413),
        ("TOO_MANY_REQUESTS", 429),
        ("VERSION_EXPIRED", 404),
        ("INVALID_ARGUMENT", 400),
        ("UNSUPPORTED", 400),
        ("QUERY_RUNNING", 409),
        ("STORAGE_UNAVAILABLE", 503),
        ("SST_DAMAGED", 500),
    ],
)
def test_errors_are_json(kind: str, status: int) -> None:
    answer = ask(GATE, f"/refuses/{kind}", headers=BEARER)
    assert answer.status == status
    assert answer.json() == {
        "error": {"code": kind, "message": "what happened", "hint": "Do this."}
    }
    assert ("retry-after" in answer.headers) == (status in (429, 503))


def test_no_such_path_and_no_such_method() -> None:
    missing = ask(GATE, "/nowhere", headers=BEARER)
    assert (missing.status, _code(missing)) == (404, "INVALID_ARGUMENT")
    other = ask(GATE, "/", method="DELETE", headers=BEARER)
    assert (other.status, _code(other)) == (405, "INVALID_ARGUMENT")
    assert "GET" in other.headers["allow"]


def test_a_defect_tells_its_place_and_no_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answer = ask(GATE, "/fails", headers=BEARER)
    assert (answer.status, _code(answer)) == (500, "INTERNAL")
    assert "secret" not in caplog.text + answer.body.decode()
    assert "ValueError at" in caplog.text
    assert "test_server.py" in caplog.text


_IN_ORDER = "the application has ended\nclosed\nended in order, False\n"
_CHILD = """
import sys
from tests.unit.web import test_server as t
t.serve_forever(int(sys.argv[1]))
"""


def serve_forever(port: int) -> None:
    """Run the application of these tests: what a child process does."""
    print_line = lambda url: print(url, flush=True)  # noqa: E731

    def close() -> bool:
        signal.raise_signal(signal.SIGINT)  # the user is impatient
        print("closed", flush=True)
        return False

    closed = run(APP, host="127.0.0.1", port=port, token=TOKEN, announce=print_line, close=close)
    print(f"ended in order, {closed}", flush=True)


@contextmanager
def _child(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", _CHILD, str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_on_loopback_until_a_signal(number: signal.Signals) -> None:
    with _child() as (child, url):
        assert url.startswith("http://127.0.0.1:")
        asked = urllib.request.Request(url, headers=BEARER)
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer) == {"path": "/", "query": ""}
            assert "server" not in answer.headers
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url)
        child.send_signal(number)
        assert child.stdout is not None
        assert child.stdout.read() == _IN_ORDER
        assert child.wait() == 0


def test_more_signals_change_nothing() -> None:
    """A second Ctrl-C dropped the requests, with a traceback each. One after them left open what
    works beside them.
    """
    with _child() as (child, url):
        asked = urllib.request.Request(f"{url}/interrupted", headers=BEARER)
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer) == {"worked": "to its end"}
        assert child.communicate() == (_IN_ORDER, "")
        assert child.returncode == 0


@pytest.mark.parametrize("number", quick_first([signal.SIGINT, signal.SIGTERM]))
def test_a_signal_ends_it_while_a_thread_is_at_work(number: signal.Signals) -> None:
    """Python waits for its threads. `millpond ui` took no Ctrl-C while it read a large state."""
    with _child() as (child, url):
        _, _, port = url.rpartition(":")
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            head = (
                f"GET /works HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            )
            connection.sendall(head.encode())
            assert child.stdout is not None
            assert child.stdout.readline() == "at work\n"
            child.send_signal(number)
            assert child.wait(timeout=60) == 0


def test_a_port_in_use_and_a_host_of_others() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("192.0.2.1", 0)):
            with pytest.raises(InvalidInputError, match="cannot listen at") as caught:
                run(APP, host=host, port=port, token=TOKEN, announce=lambda url: None)
            assert "0 takes any" in caught.value.hint


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    web.require_web()
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    with pytest.raises(UnsupportedError, match="uvicorn") as caught:
        web.require_web()
    assert "pip install 'millpond[ui]'" in caught.value.hint
