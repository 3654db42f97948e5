"""What `millpond.configure` sets on a builder, what it keeps, and what it refuses.

Only the last two tests start a JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import millpond
from integration.jvm import LIGHT_DRIVER
from millpond import _shim, config
from millpond.errors import ErrorKind, InvalidInputError, MillpondError, UnsupportedError
from millpond.spark import session

STATE = "spark.sql.streaming.stateStore."
DRIVER_PYTHON = STATE + "millpond.agent.driverPython"


def write_jar(
    directory: Path, *, spark: str = "4.3.0", millpond_version: str = millpond.__version__
) -> Path:
    """Write a jar that holds nothing but a stamp."""
    stamp = _shim.ShimStamp(
        millpond_version=millpond_version,
        spark_version=spark,
        scala_version="2.13.18",
        source_hash="0" * 64,
    )
    directory.mkdir(parents=True, exist_ok=True)
    jar = directory / _shim.jar_name(
        spark_minor=_shim.minor_version(spark), scala_binary="2.13", version=millpond_version
    )
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(_shim.STAMP_RESOURCE, stamp.encode())
    return jar


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stamped jar in the package's place, in a process in which nobody set Spark up."""
    for name in (
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "SPARK_REMOTE",
        "SPARK_CONNECT_MODE_ENABLED",
        "SPARK_API_MODE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(_shim, "JARS_DIR", tmp_path / "jars")
    return write_jar(tmp_path / "jars").resolve()


def builder(**settings: str) -> Any:
    made = SparkSession.Builder()
    for key, value in settings.items():
        made.config(key.replace("__", "."), value)
    return made


def settings_of(configured: SparkSession.Builder) -> dict[str, str]:
    return dict(configured._options)


def spark_home(directory: Path, version: str) -> Path:
    (directory / "jars").mkdir(parents=True)
    (directory / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return directory


def test_a_plain_builder_gets_jar_provider_extension_and_python(jar: Path) -> None:
    assert settings_of(millpond.configure(builder())) == {
        "spark.jars": str(jar),
        "spark.sql.extensions": "org.apache.spark.sql.millpond.MillpondExtension",
        STATE + "providerClass": "org.apache.spark.sql.millpond.MillpondStateStoreProvider",
        DRIVER_PYTHON: sys.executable,
    }
    assert millpond.jar() == str(jar)


def test_configure_returns_the_builder_and_twice_is_once(jar: Path) -> None:
    first = builder(spark__jars="/a.jar")
    assert millpond.configure(first) is first
    once = settings_of(first)
    assert settings_of(millpond.configure(first)) == once
    assert once["spark.jars"] == f"/a.jar,{jar}"


def test_what_the_user_set_stays(jar: Path) -> None:
    mine = builder(spark__jars="/a.jar, /b.jar", spark__sql__extensions="com.example.Mine")
    mine.config(DRIVER_PYTHON, "/opt/py")
    settings = settings_of(millpond.configure(mine))
    assert settings["spark.jars"] == f"/a.jar,/b.jar,{jar}"
    assert settings["spark.sql.extensions"] == "com.example.Mine," + session.EXTENSION_CLASS
    assert settings[DRIVER_PYTHON] == "/opt/py"


def test_a_copy_of_the_jar_elsewhere_is_not_added_again(jar: Path) -> None:
    settings = settings_of(millpond.configure(builder(spark__jars=f"hdfs:///apps/{jar.name}")))
    assert settings["spark.jars"] == f"hdfs:///apps/{jar.name}"


@pytest.mark.parametrize(("spark", "version"), [("4.2", millpond.__version__), ("4.3", "0.0.9")])
@pytest.mark.parametrize("where", ["defaults", "builder"])
def test_another_jar_of_millponds_goes(
    jar: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spark: str,
    version: str,
    where: str,
) -> None:
    """spark-defaults.conf named it since before an upgrade, and its classes came first."""
    other = _shim.jar_name(spark_minor=spark, scala_binary="2.13", version=version)
    jars = f"/a.jar,hdfs:///apps/{other}, /b.jar"
    if where == "defaults":
        (tmp_path / "spark-defaults.conf").write_text(f"spark.jars {jars}\n")
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    made = builder(**({"spark__jars": jars} if where == "builder" else {}))
    assert settings_of(millpond.configure(made))["spark.jars"] == f"/a.jar,/b.jar,{jar}"
    said = f"spark.jars names another Millpond's jar, which is left out: hdfs:///apps/{other}"
    assert [record.message for record in caplog.records] == [said]
    assert settings_of(millpond.configure(made))["spark.jars"] == f"/a.jar,/b.jar,{jar}"
    assert len(caplog.records) == 1


def test_another_jar_of_millponds_before_a_copy_of_the_right_one(jar: Path) -> None:
    other = _shim.jar_name(spark_minor="4.2", scala_binary="2.13")
    configured = millpond.configure(builder(spark__jars=f"/{other},hdfs:///apps/{jar.name}"))
    assert settings_of(configured)["spark.jars"] == f"hdfs:///apps/{jar.name}"


@pytest.mark.parametrize(
    ("given", "named", "expected"),
    [
        ({}, {"maxParallelism": 1024}, {"maxParallelism": "1024"}),
        (
            {},
            {"max_parallelism": 1024, "gc_grace_ms": 5},
            {"maxParallelism": "1024", "gc.graceMs": "5"},
        ),
        ({"gc.graceMs": 5}, {"commit_fsync": False}, {"gc.graceMs": "5", "commit.fsync": "false"}),
        ({config.PREFIX + "memory.budget": "64m"}, {}, {"memory.budget": "64m"}),
        ({}, {"agent_driver_python": "/opt/py"}, {"agent.driverPython": "/opt/py"}),
        ({"maxParallelism": None}, {}, {}),
    ],
)
def test_options(
    jar: Path, given: dict[str, object], named: dict[str, object], expected: dict[str, str]
) -> None:
    settings = settings_of(millpond.configure(builder(), given, **named))
    own = {
        key.removeprefix(config.PREFIX): value
        for key, value in settings.items()
        if key.startswith(config.PREFIX)
    }
    assert own == {"agent.driverPython": sys.executable, **expected}


def test_every_option_has_a_keyword_of_its_own() -> None:
    keywords = {name.replace(".", "_").lower() for name in config.BY_NAME}
    assert len(keywords) == len(config.BY_NAME)
    assert {session._option_name(keyword) for keyword in keywords} == set(config.BY_NAME)


@pytest.mark.parametrize(
    ("named", "kind", "says"),
    [
        ({"max_paralelism": 4}, ErrorKind.UNKNOWN_OPTION, "maxParallelism"),
        ({"max_parallelism": 0}, ErrorKind.INVALID_OPTION, "from 1 to 65536"),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_is_set(
    jar: Path, named: dict[str, object], kind: ErrorKind, says: str
) -> None:
    untouched = builder()
    with pytest.raises(InvalidInputError, match=says) as caught:
        millpond.configure(untouched, **named)
    assert caught.value.kind is kind
    assert settings_of(untouched) == {}


def test_a_wrong_option_set_on_the_builder_itself_is_refused(jar: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"gc\.graceMs"):
        millpond.configure(builder().config(config.PREFIX + "gc.graceMillis", "5"))


def test_spark_defaults_are_kept(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        f"# comment\nspark.jars   /d.jar\nspark.sql.extensions=com.example.D\n\n{DRIVER_PYTHON}:"
        " /opt/py\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = settings_of(millpond.configure(builder()))
    assert settings["spark.jars"] == f"/d.jar,{jar}"
    assert settings["spark.sql.extensions"] == "com.example.D," + session.EXTENSION_CLASS
    assert DRIVER_PYTHON not in settings


def test_spark_defaults_beside_a_properties_file(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads them if it is told to. A continued line is one."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.jars  /d.jar,\\\n            /e.jar\nspark.sql.extensions  com.example.D\n"
    )
    (tmp_path / "job.conf").write_text("spark.sql.extensions  com.example.J\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    arguments = f"--properties-file {tmp_path / 'job.conf'}"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{arguments} --load-spark-defaults pyspark-shell")
    settings = settings_of(millpond.configure(builder()))
    assert settings["spark.jars"] == f"/d.jar,/e.jar,{jar}"
    assert settings["spark.sql.extensions"] == "com.example.J," + session.EXTENSION_CLASS
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{arguments} pyspark-shell")
    assert settings_of(millpond.configure(builder()))["spark.jars"] == str(jar)


def test_submit_arguments_are_kept(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        f"--jars /s.jar,{jar} --conf spark.sql.extensions=com.example.S pyspark-shell",
    )
    settings = settings_of(millpond.configure(builder()))
    assert settings["spark.jars"] == f"/s.jar,{jar}"
    assert settings["spark.sql.extensions"] == "com.example.S," + session.EXTENSION_CLASS


@pytest.mark.parametrize(
    "arguments", ["--jars /s.jar pyspark-shell", "--conf spark.jars=/s.jar pyspark-shell"]
)
def test_submit_arguments_that_rule_the_jar_out(
    jar: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    with pytest.raises(UnsupportedError, match="PYSPARK_SUBMIT_ARGS") as caught:
        millpond.configure(builder())
    assert caught.value.kind is ErrorKind.SHIM_MISSING
    assert str(jar) in caught.value.hint


def test_submit_arguments_that_name_another_jar_of_millponds(
    jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They win over the builder: nothing can leave it out."""
    other = _shim.jar_name(spark_minor="4.2", scala_binary="2.13")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--jars /{other},{jar} pyspark-shell")
    with pytest.raises(UnsupportedError, match=f"PYSPARK_SUBMIT_ARGS .*{other}") as caught:
        millpond.configure(builder())
    assert caught.value.kind is ErrorKind.SHIM_VERSION_MISMATCH
    assert other in caught.value.hint


def test_no_jar(jar: Path) -> None:
    jar.unlink()
    with pytest.raises(UnsupportedError, match="no Millpond shim") as caught:
        millpond.configure(builder())
    assert caught.value.kind is ErrorKind.SHIM_MISSING
    assert "make build" in caught.value.hint


def test_a_damaged_jar(jar: Path) -> None:
    jar.write_bytes(b"PK")
    with pytest.raises(UnsupportedError, match=jar.name) as caught:
        millpond.jar()
    assert caught.value.kind is ErrorKind.SHIM_MISSING


def test_another_spark_is_refused_before_it_starts(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "spark", "4.2.1")))
    with pytest.raises(
        UnsupportedError, match=r"Spark 4\.2\.1 .* for Spark 4\.2; installed: .*spark4\.3_"
    ) as caught:
        millpond.configure(builder())
    assert caught.value.kind is ErrorKind.SHIM_VERSION_MISMATCH


def test_another_patch_release_of_spark_fits(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "spark", "4.3.7")))
    assert millpond.jar() == str(jar)


def test_of_several_jars_the_one_that_fits(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    previous = write_jar(jar.parent, spark="4.2.1").resolve()
    for version, fitting in (("4.3.0", jar), ("4.2.4", previous)):
        monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / version, version)))
        assert millpond.jar() == str(fitting)
        assert settings_of(millpond.configure(builder()))["spark.jars"] == str(fitting)
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "next", "4.4.0")))
    with pytest.raises(
        UnsupportedError, match=r"for Spark 4\.4; installed: .*spark4\.2_.*spark4\.3_"
    ) as caught:
        millpond.jar()
    assert "make wheel" in caught.value.hint


@pytest.mark.parametrize(
    ("spark", "version"), [("4.2.0", millpond.__version__), ("4.3.0", "0.0.9")]
)
def test_a_stamp_that_contradicts_the_name(
    jar: Path, tmp_path: Path, spark: str, version: str
) -> None:
    write_jar(tmp_path / "other", spark=spark, millpond_version=version).rename(jar)
    with pytest.raises(UnsupportedError, match="stamped Spark " + spark) as caught:
        millpond.jar()
    assert caught.value.kind is ErrorKind.SHIM_VERSION_MISMATCH


@pytest.mark.parametrize(
    "prepare",
    [
        lambda patch, made: made.config("spark.remote", "sc://localhost"),
        lambda patch, made: made.config("spark.api.mode", "connect"),
        lambda patch, made: (patch.setenv("SPARK_REMOTE", "sc://localhost"), made)[1],
    ],
)
def test_spark_connect_is_told_where_to_set_it(
    jar: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[pytest.MonkeyPatch, Any], SparkSession.Builder],
) -> None:
    made = prepare(monkeypatch, builder())
    with pytest.raises(UnsupportedError, match="Spark Connect") as caught:
        millpond.configure(made)
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert "millpond conf" in caught.value.hint


def test_something_that_is_no_builder(jar: Path) -> None:
    not_a_builder: Any = "local[2]"
    with pytest.raises(InvalidInputError, match=r"SparkSession\.builder, not str"):
        millpond.configure(not_a_builder)


def test_conf_lines_are_what_configure_sets(jar: Path) -> None:
    lines = dict(line.split(maxsplit=1) for line in millpond.conf_lines("local[4]"))
    assert lines == settings_of(millpond.configure(builder()))
    assert millpond.conf_lines() == millpond.conf_lines("local")


def test_conf_lines_for_clusters_name_no_python_of_this_machine(jar: Path) -> None:
    for master in (
        "spark://host:7077",
        "yarn",
        "k8s://https://host:6443",
        "local-cluster[2,1,1024]",
    ):
        settings = [line for line in millpond.conf_lines(master) if not line.startswith("#")]
        assert not any(sys.executable in line for line in settings), master
        assert any(session.PROVIDER_CLASS in line for line in settings), master
    assert any(
        line.split() == ["spark.jars", f"local://{jar}"]
        for line in millpond.conf_lines("k8s://https://h")
    )


def test_conf_examples_say_what_configure_says() -> None:
    found = sorted((Path(__file__).parents[3] / "conf").glob("*.conf"))
    examples = [path for path in found if path.stem != "prometheus"]  # lines to add to any of them
    assert [path.stem for path in examples] == ["kubernetes", "local", "standalone", "yarn"]
    for path in examples:
        settings = session._read_properties(path)
        assert settings[STATE + "providerClass"] == session.PROVIDER_CLASS, path
        assert settings["spark.sql.extensions"] == session.EXTENSION_CLASS, path
        name = settings["spark.jars"].rsplit("/", 1)[-1]
        assert name in ("shim.jar", _shim.jar_name(spark_minor="4.3", scala_binary="2.13")), path
        config.resolve(
            {key: value for key, value in settings.items() if key.startswith(config.PREFIX)}
        )


def test_importing_millpond_loads_nothing_heavy() -> None:
    script = "import sys, millpond\nprint(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = run_python(script).split()
    assert "millpond" in loaded
    assert not {"pyspark", "py4j", "pyarrow", "rocksdict", "boto3", "numpy", "pandas"} & set(loaded)


def test_all_lists_what_there_is() -> None:
    assert millpond.__all__ == sorted(millpond.__all__)
    assert all(hasattr(millpond, name) for name in millpond.__all__)
    classes = {
        cls
        for cls in vars(millpond.errors).values()
        if isinstance(cls, type) and issubclass(cls, MillpondError)
    }
    assert {cls.__name__ for cls in classes} <= set(millpond.__all__)


LATE = """
import millpond
from pyspark.sql import SparkSession

def attempt():
    try:
        millpond.configure(SparkSession.builder)
    except millpond.MillpondError as error:
        print(error.kind, "|", error)  # a notebook shows no more

plain = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
attempt()
plain.stop()
attempt()
"""


@pytest.mark.spark
@pytest.mark.deep
def test_a_jvm_without_the_jar_is_noticed_even_after_its_session_stopped() -> None:
    lines = [line for line in run_python(LATE).splitlines() if line.startswith("SHIM_MISSING")]
    assert len(lines) == 2
    assert all(
        "JVM without the Millpond jar" in line and f"--jars {millpond.jar()}" in line
        for line in lines
    )
    assert all("restart the Python process (in a notebook: the kernel)" in line for line in lines)


NO_JAR = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", 1)
    .config("spark.sql.streaming.stateStore.providerClass", sys.argv[1])
    .config("spark.sql.extensions", sys.argv[2]).getOrCreate()
)
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
query = numbers.groupBy("value").count().writeStream.outputMode("update").format("noop")
try:
    query.trigger(availableNow=True).start().awaitTermination()
except Exception as error:
    print("told:", str(error).splitlines()[0])
"""


@pytest.mark.spark
@pytest.mark.deep
def test_the_texts_of_a_spark_without_the_jar_are_in_the_docs(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_JAR, session.PROVIDER_CLASS, session.EXTENSION_CLASS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 600m pyspark-shell"},
    )
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("told:")]
    page = (repository / "docs/guides/troubleshooting.md").read_text()
    text = f"terminated with exception: {session.PROVIDER_CLASS} SQLSTATE: XXKST"
    assert text in told and text in page
    warned = f"Cannot use {session.EXTENSION_CLASS} to configure session extensions"
    assert warned in done.stderr and warned in page


ON = f"""
import millpond
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", {LIGHT_DRIVER!r})
spark = millpond.configure(builder, max_parallelism=64).getOrCreate()
print("loadable", spark._jvm.org.apache.spark.util.Utils.classIsLoadable(millpond.spark.session.PROVIDER_CLASS))
print("maxParallelism", spark.conf.get(millpond.spark.session.config.PREFIX + "maxParallelism"))
again = millpond.configure(SparkSession.builder).getOrCreate()
print("same", again is spark)
spark.stop()
spark = millpond.configure(SparkSession.builder.master("local[1]")).getOrCreate()
print("rows", spark.range(7).count())
spark.stop()
"""


@pytest.mark.spark
def test_a_session_starts_with_the_jar_and_can_be_configured_again() -> None:
    answers = run_python(ON).splitlines()
    assert answers == ["loadable True", "maxParallelism 64", "same True", "rows 7"]


def run_python(script: str) -> str:
    """Run `script` in a process of its own. Return its stdout."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_"))
    }
    environment["PYTHONPATH"] = str(Path(millpond.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
