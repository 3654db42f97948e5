"""Entry of the agent process: `python -m millpond.agent`. Only the Scala shim starts it.

The first line of stdin is JSON in UTF-8, whatever the locale: `{"port": int, "token": str,
"parent_pid": int, "local_root": str | null}`. The JVM then holds stdin open for as long as it
lives; when stdin ends, the agent exits.
Imports stay small: a task waits for this start.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import Any, BinaryIO, NoReturn

EXIT_NO_PARAMETERS = 64
EXIT_NO_LINK = 69
EXIT_DEAF = 71

log = logging.getLogger("millpond.agent")


def main(stdin: BinaryIO | None = None) -> int:
    """Run the agent until the JVM is gone.

    Returns: an exit code, only if the agent could not be set up, or if the JVM cannot open one more
        connection to it. Then the JVM starts another agent, and makes its calls again.
    """
    stdin = sys.stdin.buffer if stdin is None else stdin
    logging.basicConfig(
        stream=sys.stderr,
        level=_log_level(os.environ.get("MILLPOND_LOG", "")),
        format="%(asctime)s %(levelname)s millpond-agent[%(process)d] %(name)s: %(message)s",
    )
    if not os.environ.get("MILLPOND_LOG"):
        logging.getLogger("millpond.events").setLevel(logging.INFO)
    try:
        parameters = _parameters(stdin.readline())
    except ValueError as error:
        print(f"millpond agent: {error}", file=sys.stderr, flush=True)
        return EXIT_NO_PARAMETERS
    # Started before the link is up: if the JVM dies meanwhile, only this thread ends the process.
    threading.Thread(
        target=_exit_at_end_of, args=(stdin,), name="millpond-stdin-watchdog", daemon=True
    ).start()

    # Start-up time: the watchdog runs before these imports.
    from millpond.agent import gateway
    from millpond.agent.service import AgentService
    from millpond.storage import hadoop

    local_root = parameters.get("local_root")
    service = AgentService(local_root=local_root)
    deaf = threading.Event()
    try:
        gateway.connect(
            service,
            port=parameters["port"],
            token=parameters["token"],
            on_deaf=deaf.set,
            use_files=hadoop.use,
        )
    except gateway.LinkError as error:
        print(f"millpond agent: {error}", file=sys.stderr, flush=True)
        return EXIT_NO_LINK
    if local_root:
        threading.Thread(
            target=_look_at, args=(local_root,), name="millpond-local-disk", daemon=True
        ).start()
    deaf.wait()
    return EXIT_DEAF


def _look_at(local_root: str) -> None:
    """Measure the local disk, and in any case remove what dead executors left there."""
    # Start-up time: the JVM does not wait for these imports.
    from millpond.agent.local_dirs import sweep_abandoned
    from millpond.agent.local_speed import check_speed

    try:
        check_speed(local_root)
    finally:
        sweep_abandoned(local_root)


def _parameters(line: bytes) -> dict[str, Any]:
    """Return the start parameters.

    Raises: ValueError: its text never repeats the line, which holds the token.
    """
    if not line.strip():
        raise ValueError(
            "no start parameters on stdin: Spark's executor starts this program, not a user"
        )
    try:
        parameters = json.loads(line.decode("utf-8"))
    except ValueError:
        raise ValueError("the start parameters on stdin are not JSON in UTF-8") from None
    if not isinstance(parameters, dict):
        raise ValueError("the start parameters on stdin are not a JSON object")
    port, token = parameters.get("port"), parameters.get("token")
    if not isinstance(port, int) or not 0 < port < 65536 or not isinstance(token, str) or not token:
        raise ValueError("the start parameters on stdin lack a valid port or token")
    return parameters


def _log_level(name: str) -> int:
    level = logging.getLevelName(name.strip().upper() or "WARNING")
    return level if isinstance(level, int) else logging.WARNING


def _exit_at_end_of(stdin: BinaryIO) -> NoReturn:
    """Block until stdin ends, then leave at once. The JVM is gone, and nothing that is published is
    half done.
    """
    try:
        while stdin.read(4096):
            pass
    finally:
        os._exit(0)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # A plain exit would wait for py4j's non-daemon threads.
    os._exit(code)
