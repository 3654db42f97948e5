"""Finds processes, agents below a JVM, and ports. Waits for a condition with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process in /proc. `state`: the letter that `ps` prints (Z: zombie)."""

    pid: int
    parent: int
    state: str
    command: str


def processes() -> list[Process]:
    """Return all visible processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                command = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process ended meanwhile
            state, parent = stat.rsplit(")", 1)[1].split()[:2]
            found.append(Process(int(entry.name), int(parent), state, command))
    return found


def below(pid: int) -> list[Process]:
    """Return all descendants of `pid`."""
    everything = processes()
    wanted, found = {pid}, []
    grown = True
    while grown:
        new = [p for p in everything if p.parent in wanted and p.pid not in wanted]
        found += new
        wanted |= {p.pid for p in new}
        grown = bool(new)
    return found


def is_agent(process: Process) -> bool:
    """Return whether the process is a Millpond agent."""
    return "millpond.agent" in process.command


def agents_below(pid: int) -> list[int]:
    """Return the ids of the Millpond agents among the descendants of `pid`."""
    return [p.pid for p in below(pid) if is_agent(p)]


def listeners(pid: int) -> int:
    """Return how many ports of TCP the process listens at."""
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add(f"socket:[{fields[9]}]")
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(descriptor) in listening
        except FileNotFoundError:
            continue  # it was closed meanwhile
    return found


def alive(pid: int) -> bool:
    """Return whether `pid` exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Poll `condition` until it holds. Raises: AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.02)
