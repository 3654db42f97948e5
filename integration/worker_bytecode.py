"""Puts bytecode beside the sources in Spark's zip files, from which its Python workers import.

Spark puts `pyspark.zip` first on the path of each Python worker. Python cannot keep bytecode for a
zip file, so each worker compiles pyspark anew, which takes it half a second. The tests start
thousands of workers. `make test` runs this once for each version of Spark.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import tempfile
import zipfile
from pathlib import Path

import pyspark

LIBRARY = Path(pyspark.__file__).parent / "python/lib"


def add_bytecode(archive: Path) -> int:
    """Add the bytecode of each module but pyspark's own tests. The sources stay as they are.

    Return how many were added: 0 if there is bytecode already.
    """
    with zipfile.ZipFile(archive) as given:
        names = given.namelist()
        if any(name.endswith(".pyc") for name in names):
            return 0
        modules = [name for name in names if name.endswith(".py") and "/tests/" not in name]
        with tempfile.TemporaryDirectory(prefix="millpond-bytecode-") as folder:
            given.extractall(folder, modules)
            written = archive.with_name(f".{archive.name}.{os.getpid()}")
            shutil.copyfile(archive, written)
            with zipfile.ZipFile(written, "a") as more:
                for name in modules:
                    source = Path(folder, name)
                    bytecode = source.with_suffix(".pyc")
                    py_compile.compile(
                        str(source),
                        cfile=str(bytecode),
                        dfile=str(archive / name),  # what a traceback says
                        doraise=True,
                        # The zip file keeps the time of a source only roughly.
                        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                    )
                    more.write(bytecode, f"{name}c")
    written.replace(archive)
    return len(modules)


if __name__ == "__main__":
    for found in sorted(LIBRARY.glob("*.zip")):
        add_bytecode(found)
