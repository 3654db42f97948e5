"""Unpack another minor line of Spark beside the one in .venv: `python jvm-shim/fetch_spark.py 4.2 build/spark/4.2`.

Installing pyspark means to pack its 450 MB into a wheel and to unpack them again. This unpacks the sdist as it is,
in the layout of the installed package: `<folder>/pyspark` can be imported with `<folder>` on the path.
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

# As pyspark's setup.py maps them; examples and licences stay behind.
_LAYOUT = {
    "pyspark": "pyspark",
    "deps/jars": "pyspark/jars",
    "deps/bin": "pyspark/bin",
    "deps/sbin": "pyspark/sbin",
    "lib": "pyspark/python/lib",
}


def fetch(line: str, folder: Path) -> Path:
    """Return `folder` with the newest pyspark of the minor line `line` in it; complete or not there at all."""
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
            [*pip, "--dest", str(work), f"pyspark=={line}.*"], check=True, stdin=subprocess.DEVNULL
        )
        (archive,) = work.glob("pyspark-*.tar.gz")
        unpack(archive, work / "layout")
        shutil.rmtree(folder, ignore_errors=True)
        (work / "layout").rename(folder)
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Unpack pyspark's sdist into `folder` as its setup.py would install it."""
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            source = next((part for part in _LAYOUT if inside.startswith(f"{part}/")), None)
            if source is not None and member.isfile():
                member.name = _LAYOUT[source] + inside[len(source) :]
                tar.extract(member, folder, filter="data")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what the command line names."""
    parser = argparse.ArgumentParser(description="Unpack a minor line of Spark from PyPI.")
    parser.add_argument("line", help="such as 4.2")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    print(f"{fetch(options.line, options.folder)} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
