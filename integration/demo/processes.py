"""Finds and kills exactly the processes that the demo started, and proves that none is left.

Every child has a tag in its environment, and its own children inherit the tag. So `find` finds a
process even if its parent is dead, and never takes another program's process. It reads /proc, so it
needs Linux.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TAG = "MILLPOND_DEMO_RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A live process of this run."""

    pid: int
    role: str  # driver, jvm, agent, or the name of the executable
    started: int  # clock ticks after boot: with the pid, unique


def find(value: str, name: str = TAG) -> list[Process]:
    """Return the live processes with `value` in their environment. Zombies do not count.

    Args:
        value: the whole value of the variable.
        name: the variable.
    """
    needle = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # the process has ended, or it belongs to another user
        if stat[0] not in ("Z", "X"):
            found.append(Process(pid=int(entry.name), role=_role(command), started=int(stat[19])))
    return found


def _role(command: list[bytes]) -> str:
    if b"integration.demo.job" in command:
        return "driver"
    if any(part.startswith(b"millpond.agent") for part in command):
        return "agent"
    name = os.path.basename(command[0].decode(errors="replace"))
    return "jvm" if name == "java" else name


def kill(processes: Iterable[Process]) -> None:
    """Send SIGKILL to each process. It may have ended already."""
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def end_all(value: str, *, timeout_s: float) -> None:
    """Kill processes with the tag `value` until there is none.

    One pass may not be enough: a process may start another while it dies.

    Raises:
        TimeoutError: a process is still there after `timeout_s` seconds.
    """

    def none_left() -> bool:
        left = find(value)
        kill(left)
        return not left

    if not wait_until(none_left, timeout_s=timeout_s):
        raise TimeoutError(
            f"still alive: {', '.join(f'{one.role} (pid {one.pid})' for one in find(value))}"
        )


def wait_until(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.02) -> bool:
    """Return True as soon as `condition` holds, or False after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
