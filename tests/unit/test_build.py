"""The build of the shim's jar: what it compiles and when, and what arrives in the wheel."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import build_shim
from build_shim import BuildError, build_jar, compile_scala, find_spark, jars_of_other_versions
from fetch_spark import unpack
from integration.depth import is_in_part
from integration.peers.results import PEERS
from millpond import _shim
from millpond._version import __version__
from millpond.reference import errors_json, events_json, options_json, sparks_json
from millpond.spark.session import EXTENSION_CLASS, PROVIDER_CLASS

REPO = Path(__file__).resolve().parents[2]
GREETER = 'package example\nclass Greeter { def greet(name: String): String = s"hello $name" }\n'
MINOR = _shim.minor_version(find_spark().spark_version)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a source tree whose shim is two small classes, one in each layer.

    Its name holds a space.
    """
    root = tmp_path / "a tree"
    for layer, name in (("scala", "Greeter"), (f"scala-spark-{MINOR}", "Line")):
        (root / "jvm-shim/src/main" / layer).mkdir(parents=True)
        (root / "jvm-shim/src/main" / layer / f"{name}.scala").write_text(
            GREETER.replace("Greeter", name)
        )
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(REPO / name, root / name)
    return root


@pytest.mark.deep
def test_compiled_once_until_something_changes(tree: Path) -> None:
    jar = build_jar(tree)
    assert (
        jar == tree / f"python/src/millpond/jars/millpond-shim-spark{MINOR}_2.13-{__version__}.jar"
    )
    first, stamp = jar.read_bytes(), _shim.read_stamp(jar)
    assert stamp.millpond_version == __version__
    assert stamp.spark_version == find_spark().spark_version
    assert stamp.scala_version.startswith("2.13.")
    modified_ns = jar.stat().st_mtime_ns

    stale = jar.with_name(jar.name.replace(__version__, "0.0.9"))
    stale.touch()
    assert build_jar(tree) == jar
    assert jar.stat().st_mtime_ns == modified_ns

    # The same sources give the same bytes. A build removes what an older version left.
    build_jar(tree, force=True)
    assert jar.read_bytes() == first
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]

    source = tree / "jvm-shim/src/main/scala/Greeter.scala"
    source.write_text(source.read_text().replace("hello", "good day"))
    build_jar(tree)
    assert _shim.read_stamp(jar).source_hash != stamp.source_hash
    assert jar.read_bytes() != first


@pytest.mark.deep
def test_a_wheel_takes_along_the_current_jars_of_other_versions(tree: Path) -> None:
    jar = build_jar(tree)
    layer = tree / "jvm-shim/src/main/scala-spark-9.8"
    layer.mkdir()
    (layer / "Line.scala").write_text(GREETER.replace("Greeter", "Line"))
    # another interpreter's pyspark would have built this jar from the tree
    spark = dataclasses.replace(find_spark(), spark_version="9.8.1")
    other = build_jar(tree, spark=spark)
    assert other.name == f"millpond-shim-spark9.8_2.13-{__version__}.jar"
    assert jars_of_other_versions(tree, jar) == [other]
    assert jars_of_other_versions(tree, other) == [jar]

    (jar.parent / "millpond-shim-spark9.7_2.13-0.1.0.jar").write_bytes(b"no jar")
    common = tree / "jvm-shim/src/main/scala/Greeter.scala"
    common.write_text(common.read_text().replace("hello", "good day"))
    build_jar(tree)
    assert jars_of_other_versions(tree, jar) == []
    assert jars_of_other_versions(tree, build_jar(tree, spark=spark)) == [jar]
    shutil.rmtree(layer)
    assert jars_of_other_versions(tree, jar) == []


def test_another_pyspark_is_unpacked_as_it_would_be_installed(tmp_path: Path) -> None:
    files = {
        "pyspark/version.py": b"4",
        "deps/jars/spark-core_2.13-4.2.1.jar": b"PK",
        "deps/bin/spark-submit": b"#!",
        "lib/py4j-src.zip": b"PK",
        "deps/licenses/LICENSE": b"no",
        "setup.py": b"no",
    }
    archive = tmp_path / "pyspark-4.2.1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"pyspark-4.2.1/{name}")
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    unpack(archive, tmp_path / "out")
    found = {
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == {
        "pyspark/version.py",
        "pyspark/jars/spark-core_2.13-4.2.1.jar",
        "pyspark/bin/spark-submit",
        "pyspark/python/lib/py4j-src.zip",
    }
    assert os.access(tmp_path / "out/pyspark/bin/spark-submit", os.X_OK)


@pytest.mark.deep
def test_a_damaged_jar_is_built_again(tree: Path) -> None:
    jar = tree / "python/src/millpond/jars" / f"millpond-shim-spark{MINOR}_2.13-{__version__}.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"PK\x03\x04 half a download")
    build_jar(tree)
    with zipfile.ZipFile(jar) as archive:
        assert {"example/Greeter.class", "example/Line.class"} <= set(archive.namelist())
        assert archive.namelist()[0] == "META-INF/MANIFEST.MF"
        assert archive.testzip() is None


def test_an_error_names_file_and_line_and_leaves_no_jar(tree: Path) -> None:
    (tree / "jvm-shim/src/main/scala/Greeter.scala").write_text(
        GREETER.replace("String =", "Int =")
    )
    with pytest.raises(BuildError, match=r"Greeter\.scala:2: error: type mismatch"):
        build_jar(tree)
    assert list((tree / "python/src/millpond/jars").iterdir()) == []


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "Unused.scala"
    source.write_text("package example\nimport scala.util.Try\nclass Unused\n")
    with pytest.raises(BuildError, match="Unused import"):
        compile_scala([source], tmp_path / "out")


def test_no_sources_for_this_spark(tree: Path) -> None:
    shutil.rmtree(tree / f"jvm-shim/src/main/scala-spark-{MINOR}")
    with pytest.raises(BuildError, match=f"no shim for Spark {MINOR}"):
        build_jar(tree)


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="needs Java 17"):
        build_shim.find_java()


@pytest.mark.deep
def test_tests_compile_against_the_jar(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "Caller.scala"
    source.write_text(
        'package example\nclass Caller { def call: String = new Greeter().greet("you") }\n'
    )
    compile_scala([source], tmp_path / "out", [build_jar(tree)])
    assert (tmp_path / "out/example/Caller.class").is_file()


def run(*command: str | Path, cwd: Path) -> str:
    # The `make` above may have settings. They must not reach this one.
    left_out = {"PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel that a stranger gets.

    It comes from an sdist, which comes from a clean copy of the sources.
    """
    pytest.importorskip(
        "hatchling",
        reason="the build's own requirements are not in this environment: use `make test`",
    )
    work = tmp_path_factory.mktemp("wheel")
    copy = work / "clean copy"
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPO)
    for name in filter(None, listed.split("\0")):
        if (REPO / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, copy / name)
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", work / "sdist", cwd=copy)
    (sdist,) = (work / "sdist").iterdir()
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index")
    run(*pip, "-w", work / "out", sdist, cwd=work)
    (built,) = (work / "out").iterdir()
    return built


@pytest.mark.deep
def test_the_wheel_is_pure_and_has_one_jar(wheel: Path) -> None:
    assert wheel.name == f"millpond-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"millpond-{__version__}.dist-info/METADATA").decode()
    jars = [name for name in names if name.endswith(".jar")]
    assert jars == [f"millpond/jars/millpond-shim-spark{MINOR}_2.13-{__version__}.jar"]
    assert {"millpond/py.typed", "millpond/spark/session.py", "millpond/agent/__main__.py"} <= set(
        names
    )
    assert not [name for name in names if name.startswith(("tests", "jvm-shim", "integration"))]
    assert {
        f"millpond-{__version__}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")
    } <= set(names)
    assert "Requires-Dist: pyspark<4.4,>=4.2" in metadata


@pytest.mark.deep
def test_the_jar_in_the_wheel_has_classes_stamp_and_tables(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".jar")]
        jar = Path(archive.extract(name, tmp_path))
    with zipfile.ZipFile(jar) as archive:
        names = set(archive.namelist())
        service = "META-INF/services/org.apache.spark.status.AppHistoryServerPlugin"
        plugin = archive.read(service).decode().strip()
        assert plugin.replace(".", "/") + ".class" in names
        assert archive.read("millpond/errors.json").decode() == errors_json()
        assert archive.read("millpond/events.json").decode() == events_json()
        assert archive.read("millpond/options.json").decode() == options_json()
        assert archive.read("millpond/sparks.json").decode() == sparks_json()
    assert {cls.replace(".", "/") + ".class" for cls in (PROVIDER_CLASS, EXTENSION_CLASS)} <= names
    # Another place built it from the same sources. So the jar is the same, and its stamp is that of
    # the source tree's own build.
    assert _shim.read_stamp(jar) == _shim.read_stamp(build_jar(REPO))


@pytest.mark.deep
def test_the_installed_wheel_finds_its_jar(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        target,
        wheel,
        cwd=tmp_path,
    )
    script = (
        f"import sys; sys.path.insert(0, {str(target)!r}); import millpond;"
        " print(millpond.__file__, millpond.jar())"
    )
    package, jar = run(sys.executable, "-c", script, cwd=tmp_path).split()
    assert Path(package).is_relative_to(target)
    assert Path(jar).is_relative_to(target)


@pytest.mark.deep
def test_every_test_is_deep_or_quick_and_ci_runs_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLPOND_DEEP_PART", raising=False)
    selected, left_out = [], []
    for target in ("test", "deep"):
        said = run("make", target, "TEST=", "TEST_ARGS=--collect-only -q", cwd=REPO)
        (count,) = re.findall(r" tests collected \((\d+) deselected\)", said)
        selected.append({line for line in said.splitlines() if "::" in line})
        left_out.append(int(count))
    quick, deep = selected
    assert not quick & deep
    assert not [name for name in quick | deep if "integration/peers" in name], "make peer-kafka"
    assert left_out == [len(deep), len(quick)]
    assert "for part in previous deep;" in (REPO / "Makefile").read_text()
    ci = (REPO / ".ci/run").read_text()
    assert 0 < ci.index("timed make test\n") < ci.index("timed make test-all\n")


def test_each_deep_test_is_in_one_part() -> None:
    names = [f"integration/test_a.py::test_b[{n}]" for n in range(300)]
    assert all(is_in_part(name, "1/1") for name in names)
    sizes = [sum(is_in_part(name, f"{part}/3") for name in names) for part in (1, 2, 3)]
    assert sum(sizes) == len(names) and min(sizes) > 70
    assert all(sum(is_in_part(name, f"{part}/3") for part in (1, 2, 3)) == 1 for name in names)


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "x/3", "1/0"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError):
        is_in_part("integration/test_a.py::test_b", part)


@pytest.mark.parametrize(
    ("tested", "so_far", "parts"), [(320, 470, 1), (380, 580, 2), (680, 800, 4), (1440, 1640, 6)]
)
def test_ci_runs_the_deep_tests_that_an_hour_has_room_for(
    tested: int, so_far: int, parts: int
) -> None:
    source = (REPO / ".ci/run").read_text()
    function = source[source.index("part_in_time() {") : source.index("if timed make build")]
    asked = f"{function}\nSECONDS={so_far}; part_in_time {tested}"
    part, of = run("bash", "-c", asked, cwd=REPO).split("/")
    assert int(of) == parts and 1 <= int(part) <= parts


def test_make_help_lists_what_the_readme_promises() -> None:
    listed = {
        line.split()[1]
        for line in run("make", "--no-print-directory", "help", cwd=REPO).splitlines()
    }
    peers = {target for target in listed if target.startswith("peer-")}
    assert peers == {f"peer-{name}" for name in PEERS}
    assert listed - peers == {
        "help",
        "peers",
        "build",
        "test",
        "test-all",
        "deep",
        "shapes",
        "previous",
        "wheel",
        "demo",
        "format-scala",
        "lint",
        "bench",
        "bench-balance",
        "bench-disk",
        "bench-large",
        "bench-latency",
        "bench-latency-flink",
        "bench-nexmark",
        "bench-nexmark-flink",
        "bench-python",
        "bench-s3",
        "bench-serve",
        "bench-small",
        "bench-standby",
        "bench-stores",
        "bench-lookup",
        "bench-ui",
        "chains",
        "simulate",
        "simulate-mutants",
        "soak",
        "docs",
        "clean",
    }
