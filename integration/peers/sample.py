"""Runs the sample of each peer that is named: `python -m integration.peers.sample kafka hdfs`.

A peer that cannot be fetched here is left out, with the line that says why. Anything else that goes
wrong fails the run. One peer is fetched at a time, since they share caches; meanwhile the samples
of those that are there run, two at a time. What each says is printed when it has ended.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

# A sample waits for its servers much of the time.
_AT_ONCE = 2
# Spark's own tests need both versions of Spark, which the target prepares.
_OWN_TARGETS = {"spark": ["make", "--no-print-directory", "peer-spark", "SAMPLE=1"]}


@dataclass(frozen=True)
class _Ended:
    """A program that has ended: what it said, and its exit code."""

    said: str
    code: int


def _run(*command: str) -> _Ended:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return _Ended(done.stdout, done.returncode)


def _sample(peer: str, fetching: Future[_Ended]) -> _Ended:
    fetched = fetching.result()
    if fetched.code:
        is_out_of_reach = f"make peer-{peer} cannot run: " in fetched.said
        return _Ended(fetched.said, 0 if is_out_of_reach else fetched.code)
    tests = [sys.executable, "-m", "pytest", f"integration/peers/{peer}", "-m", "peer and sample"]
    ran = _run(*_OWN_TARGETS.get(peer, tests))
    return _Ended(fetched.said + ran.said, ran.code)


def main(peers: list[str]) -> int:
    """Return the exit code: 0 if every peer passed or cannot be fetched."""
    failed = False
    with ThreadPoolExecutor(1) as fetcher, ThreadPoolExecutor(_AT_ONCE) as runner:
        samples = []
        for peer in peers:
            fetching = fetcher.submit(_run, sys.executable, "-m", f"integration.peers.{peer}")
            samples.append(runner.submit(_sample, peer, fetching))
        for sample in samples:
            ended = sample.result()
            print(ended.said, end="", flush=True)
            failed |= ended.code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
