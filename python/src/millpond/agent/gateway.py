"""The link to the JVM, and the only importer of py4j.

The JVM runs a `GatewayServer` (loopback, token). The agent connects to it, then opens its own
callback server (loopback, a free port, the same token) and points the JVM's callback client at it.
Last it registers an object that implements the Scala trait
`org.apache.spark.sql.millpond.AgentApi`. py4j serves every JVM connection in a thread of its own.
"""

from __future__ import annotations

import glob
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

log = logging.getLogger(__name__)

AGENT_INTERFACE = "org.apache.spark.sql.millpond.AgentApi"
LOOPBACK = "127.0.0.1"  # where AgentProcess.scala listens
# py4j listens with a backlog of 5. An executor with many cores opens its connections all at once. A
# SYN that finds the backlog full is repeated only after a second.
CALLBACK_BACKLOG = 512
START_TIMEOUT_S = 30.0


class LinkError(Exception):
    """The JVM could not be reached, or refused the agent. The process should end with this text."""


class Handler(Protocol):
    """What the gateway serves."""

    def handle(self, method: str, request: str) -> str:
        """Answer one call. Never raises."""


class _AgentApi:
    """The object that the JVM calls."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def call(self, method: str, request: str) -> str:
        return self._handler.handle(method, request)

    def toString(self) -> str:  # the JVM's name for it: the JVM calls it to log the object
        return "millpond agent"

    class Java:
        implements: ClassVar[list[str]] = [AGENT_INTERFACE]


def connect(
    handler: Handler,
    *,
    port: int,
    token: str,
    on_deaf: Callable[[], None],
    interface: str = AGENT_INTERFACE,
    use_files: Callable[[Callable[[str, str], str]], None] | None = None,
) -> Any:
    """Connect to the JVM's gateway at loopback `port` and register `handler` there.

    Args:
        on_deaf: is called if the callback server stops, as py4j's does at the first connection that
            it cannot serve. Its port stays open, so the JVM would wait there for an answer.
        interface: name of the JVM interface to implement; tests bring their own.
        use_files: is called before the first call comes, with the function that asks the JVM to
            move files (`storage.hadoop`).
    Returns: the py4j gateway. Keep a reference to it; its threads serve until the process ends.
    Raises: LinkError: there is no JVM, it refused the token, or py4j is not installed.
    """
    java_gateway = _import_py4j()
    # py4j logs what it sends, even the token, and a traceback when the JVM is merely gone.
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    _AgentApi.Java.implements = [interface]
    started = threading.Event()

    def on_started(sender: Any = None, **_: Any) -> None:
        started.set()

    def on_error(sender: Any = None, error: BaseException | None = None, **_: Any) -> None:
        log.error("the JVM cannot open one more connection: %r", error)

    def on_stopped(sender: Any = None, **_: Any) -> None:
        on_deaf()

    java_gateway.server_started.connect(on_started)
    java_gateway.server_connection_error.connect(on_error)
    java_gateway.server_stopped.connect(on_stopped)
    try:
        gateway = java_gateway.JavaGateway(
            gateway_parameters=java_gateway.GatewayParameters(
                address=LOOPBACK, port=port, auth_token=token, auto_convert=True
            ),
            callback_server_parameters=java_gateway.CallbackServerParameters(
                address=LOOPBACK,
                port=0,
                auth_token=token,
                daemonize=True,
                daemonize_connections=True,
            ),
        )
        callback_server = gateway.get_callback_server()
        if not started.wait(START_TIMEOUT_S):
            raise LinkError(f"the callback server did not start within {START_TIMEOUT_S:.0f} s")
        callback_server.server_socket.listen(CALLBACK_BACKLOG)
        server = gateway.java_gateway_server
        server.resetCallbackClient(
            server.getCallbackClient().getAddress(), callback_server.get_listening_port()
        )
        if use_files is not None:
            entry_point = gateway.entry_point
            use_files(lambda method, request: str(entry_point.files(method, request)))
        gateway.entry_point.register(_AgentApi(handler))
    except LinkError:
        raise
    # py4j raises errors of its own and of sockets; here all of them mean the same.
    except Exception as error:
        raise LinkError(
            f"cannot link to the JVM at {LOOPBACK}:{port}: {type(error).__name__}:"
            f" {_one_line(error)}"
        ) from error
    log.info(
        "linked to the JVM port=%d callback_port=%d", port, callback_server.get_listening_port()
    )
    return gateway


def _import_py4j() -> Any:
    # Not above: py4j may come from a path that this function adds.
    try:
        from py4j import java_gateway
    except ImportError:
        # On an executor of a cluster, py4j is often only the zip in Spark's own distribution.
        if spark_home := os.environ.get("SPARK_HOME"):
            sys.path += sorted(
                glob.glob(os.path.join(spark_home, "python", "lib", "py4j-*-src.zip"))
            )
        try:
            from py4j import java_gateway
        except ImportError as error:
            raise LinkError(
                f"{sys.executable} cannot import py4j; install it there (pip install py4j),"
                " or set SPARK_HOME"
            ) from error
    return java_gateway


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
