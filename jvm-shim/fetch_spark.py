"""Unpack another minor version of Spark beside the one in .venv.

    python jvm-shim/fetch_spark.py 4.2 build/spark/4.2

pip would pack pyspark's 450 MB into a wheel, and unpack them again. This unpacks the sdist in the
layout of the installed package. With `<folder>` on the path, Python imports `<folder>/pyspark`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# The mapping of pyspark's setup.py, without examples and licences.
_LAYOUT = {
    "pyspark": "pyspark",
    "deps/jars": "pyspark/jars",
    "deps/bin": "pyspark/bin",
    "deps/sbin": "pyspark/sbin",
    "lib": "pyspark/python/lib",
}


def fetch(version: str, folder: Path) -> Path:
    """Fetch the newest pyspark of the minor version `version` into `folder`, and return `folder`.

    The folder is complete or absent, never half full.
    """
    if (folder / "pyspark" / "version.py").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
        work = Path(temporary)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "pyspark",
        ]
        subprocess.run(
            [*pip, "--dest", str(work), f"pyspark=={version}.*"],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        (archive,) = work.glob("pyspark-*.tar.gz")
        unpack(archive, work / "layout")
        shutil.rmtree(folder, ignore_errors=True)
        (work / "layout").rename(folder)
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Unpack pyspark's sdist into `folder`, as its setup.py would install it."""
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            source = next((part for part in _LAYOUT if inside.startswith(f"{part}/")), None)
            if source is not None and member.isfile():
                member.name = _LAYOUT[source] + inside[len(source) :]
                tar.extract(member, folder, filter="data")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the version of Spark that the command line names."""
    parser = argparse.ArgumentParser(description="Unpack a minor version of Spark from PyPI.")
    parser.add_argument("version", help="such as 4.2")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    print(f"{fetch(options.version, options.folder)} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
