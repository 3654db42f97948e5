"""Asks an ASGI application without a network: one request, one answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]


@dataclass(frozen=True)
class Answer:
    """What came back. The names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def asked(
    app: App,
    url: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    """Return the answer to a request. Without a header `host` it is for 127.0.0.1:8080."""
    path, _, query = url.partition("?")
    given = {"host": "127.0.0.1:8080", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8080),
    }
    sent: list[Message] = []
    bodies = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return bodies.pop() if bodies else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    names = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], names, b"".join(part.get("body", b"") for part in sent[1:]))


def ask(app: App, url: str, **more: Any) -> Answer:
    """As `asked`, in an event loop of its own."""
    return asyncio.run(asked(app, url, **more))
