"""Runs the sample of each peer that is named: `python -m integration.peers.sample kafka hdfs`.

A peer that cannot be fetched here is left out, with the line that says why. Anything else that goes
wrong fails the run.
"""

from __future__ import annotations

import subprocess
import sys

# Spark's own tests need both versions of Spark, which the target prepares.
_OWN_TARGETS = {"spark": ["make", "--no-print-directory", "peer-spark", "SAMPLE=1"]}


def main(peers: list[str]) -> int:
    """Return the exit code: 0 if every peer passed or cannot be fetched."""
    failed = False
    for peer in peers:
        module = f"integration.peers.{peer}"
        fetched = subprocess.run(
            [sys.executable, "-m", module], stderr=subprocess.PIPE, text=True, check=False
        )
        sys.stderr.write(fetched.stderr)
        if fetched.returncode:
            failed |= f"make peer-{peer} cannot run: " not in fetched.stderr
            continue
        tests = [sys.executable, "-m", "pytest", f"integration/peers/{peer}", "-m"]
        command = _OWN_TARGETS.get(peer, [*tests, "peer and sample"])
        failed |= subprocess.run(command, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
