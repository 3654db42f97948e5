"""Two ways for a command to reach Azure: obstore, and Hadoop's ABFS in a JVM of the command's own.

    python -m benchmarks.bench_doors         # needs what `make peer-azurite` fetches

Each way has a process of its own, three times in turn, on one Azurite on loopback. It prints the
medians, and how many requests the service got. Azurite answers in a millisecond: on a real service
each request takes several, so the counts matter more than the times.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from integration.peers.azurite import parts
from integration.peers.azurite.server import Azurite
from integration.peers.matrix import Place
from millpond.config import MIB

SMALL, LARGE, FILES, ROUNDS = 10_000, 16 * MIB, 50, 3


def one(root: str) -> dict[str, float]:
    """Measure this process's way. Times in ms."""
    began = time.monotonic()
    from millpond.storage import open_storage

    storage = open_storage(root)
    list(storage.list(""))
    found = {"first answer": (time.monotonic() - began) * 1000}

    def timed(name: str, times: int, call: Callable[[int], object]) -> None:
        took = []
        for i in range(times):
            start = time.monotonic()
            call(i)
            took.append((time.monotonic() - start) * 1000)
        found[name] = statistics.median(took)

    mark = _mark(root)
    small, large = os.urandom(SMALL), os.urandom(LARGE)
    mark("put")
    timed(
        "put 10 kB, if absent", FILES, lambda i: storage.put_bytes(f"s/{i}", small, if_absent=True)
    )
    mark("put 16 MiB")
    with tempfile.NamedTemporaryFile() as file:
        file.write(large)
        file.flush()
        timed("put 16 MiB", 3, lambda i: storage.put_file(f"l/{i}", file.name))
    mark("read")
    timed("read 10 kB", FILES, lambda i: storage.read(f"s/{i}"))
    mark("fetch")
    with tempfile.TemporaryDirectory() as folder:
        timed("fetch 16 MiB", 3, lambda i: storage.get_to_file(f"l/{i}", f"{folder}/{i}"))
    mark("list")
    timed("list 53 files", 5, lambda i: list(storage.list("")))
    mark("delete")
    timed("delete 50 files", 1, lambda i: storage.delete([f"s/{j}" for j in range(FILES)]))
    mark("end")
    return {**found, "resident MiB": _resident(os.getpid()) / MIB}


def _mark(root: str) -> Callable[[str], None]:
    """Return a function that tells the parent, which counts requests, what begins."""

    def mark(name: str) -> None:
        print(name, flush=True)
        sys.stdin.readline()

    return mark


def _resident(pid: int) -> int:
    """Memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident(int(child)) for child in children)


def counting(work: Path) -> Azurite:
    """Return a server that notes each request in its log."""
    server = Azurite(work)
    server._command = [word for word in server._command if word != "--silent"]
    return server


def asked_of(log: Path) -> int:
    """Return how many requests the server got so far."""
    return log.read_text().count(" HTTP/1.1")


def main() -> None:
    """Measure both, and print the table."""
    parts.fetch()
    found: dict[str, list[dict[str, float]]] = {"obstore": [], "ABFS": []}
    counts: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        server = counting(work)
        with server.running():
            for number in range(ROUNDS):
                for way in found:
                    root = f"{server.container('doors')}/{way}-{number}"
                    place = Place("Azurite", way, root, hadoop=server.hadoop, jars=parts.abfs())
                    env = place.environment(work / "conf")
                    if number == 0 and way == "obstore":  # the JVM makes the container
                        _child(root, {**env, "MILLPOND_DOOR": "ABFS"}, server, short=True)
                    said, asked = _child(root, {**env, "MILLPOND_DOOR": way}, server)
                    found[way].append(said)
                    counts[way] = asked
    names = found["obstore"][0]
    print("| | obstore | ABFS in a JVM |\n|---|---|---|")
    for name in names:
        cells = (statistics.median(said[name] for said in found[way]) for way in found)
        print(f"| {name} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")
    for name in counts["obstore"]:
        print(f"| requests: {name} | " + " | ".join(f"{counts[w][name]:.1f}" for w in found) + " |")


_PER = {"put": FILES, "put 16 MiB": 3, "read": FILES, "fetch": 3, "list": 5, "delete": FILES}


def _child(
    root: str, env: dict[str, str], server: Azurite, short: bool = False
) -> tuple[dict[str, float], dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.bench_doors", root, "short" if short else "whole"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        marks: list[tuple[str, int]] = []
        for line in child.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                break
            marks.append((line.strip(), asked_of(server._log)))
            child.stdin.write("\n")
            child.stdin.flush()
        else:
            raise SystemExit(f"the process of {root} failed")
    asked = {
        name: (following - count) / _PER[name]
        for (name, count), (_, following) in itertools.pairwise(marks)
    }
    return said, asked


if __name__ == "__main__":
    if len(sys.argv) == 3:
        if os.environ["MILLPOND_DOOR"] == "ABFS":
            sys.modules["obstore"] = None  # type: ignore[assignment]
        if sys.argv[2] == "short":
            from millpond.storage import open_storage

            open_storage(sys.argv[1]).put_bytes("first", b"x")
            print("{}", flush=True)
        else:
            print(json.dumps(one(sys.argv[1])), flush=True)
    else:
        main()
