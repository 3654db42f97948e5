"""The archive with Millpond's Python that a job ships, made as docs/guides/cluster.md says."""

from __future__ import annotations

import shutil
import subprocess
import sys

from integration.jvm import REPO
from integration.peers.fetching import FetchError

_ROOT = REPO / "build" / "peers" / "yarn"
ARCHIVE = _ROOT / "millpond-env.tar.gz"
# What Millpond's agent needs. The cluster has Spark.
_PACKAGES = ("py4j", "rocksdict", "zstandard")


def pack() -> None:
    """Pack an environment with the Millpond of this repository.

    Raises: FetchError: PyPI is out of reach.
    """
    shutil.rmtree(_ROOT, ignore_errors=True)
    _ROOT.mkdir(parents=True)
    environment = _ROOT / "env"
    python = str(environment / "bin" / "python")
    _run(sys.executable, "-m", "venv", str(environment))
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(_ROOT), str(REPO))
    _run(sys.executable, "-m", "pip", *wheel)
    (millpond,) = map(str, _ROOT.glob("millpond-*.whl"))
    _run(python, "-m", "pip", "install", "--no-deps", *_PACKAGES, millpond)
    _run(python, "-m", "pip", "install", "venv-pack", "setuptools<81")
    _run(python, "-m", "venv_pack", "--prefix", str(environment), "--output", str(ARCHIVE))


def _run(*command: str) -> None:
    log = _ROOT / "log"
    with log.open("ab") as said:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise FetchError(f"it packs Python packages from PyPI, and cannot; {log} says more")
