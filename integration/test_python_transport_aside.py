"""Where Python's state cannot travel in bulk, Spark's transport runs: with other Pythons on the
workers, with a Spark that was not tested. Where it can, whatever kind of worker Spark makes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

import millpond
from integration.cases import transform_with_state
from integration.jvm import IS_SPARK_4_2, MILLPOND, REPO, millpond_jar
from integration.python_state_cases import Seeded
from integration.streams import Input, Run, finish, start
from integration.transport_job import ECHOES, KEYS, TEXT, expected
from integration.transports import PROVIDER, SPARK, transport_conf
from millpond import checkpoint

_ASIDE = re.compile(r"INFO events: event=python_transport_stepped_aside reason=(.*)")
_ECHOED = [[key, ECHOES * TEXT] for key in range(KEYS)]
_PANDAS_IN_BULK = not IS_SPARK_4_2
_NUMBERS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def _job(
    tmp_path: Path, settings: dict[str, str] | None = None, python: Path | None = None
) -> tuple[dict[str, Any], list[str], str]:
    """Run `transport_job`. Return what it printed, the reasons of operators that stepped aside, and
    the log.

    Args:
        python: the workers' interpreter.
    """
    work = tmp_path / "job"
    work.mkdir()
    command = [sys.executable, "-m", "integration.transport_job"]
    done = subprocess.run(
        [*command, str(work), json.dumps(settings or {})],
        cwd=REPO,
        env={**os.environ, "PYSPARK_PYTHON": str(python or sys.executable)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), _ASIDE.findall(done.stderr), done.stderr


def _assert_rows(found: dict[str, Any]) -> None:
    assert [query["condition"] for query in found.values()] == [""] * 4
    assert found["row"]["rows"] == expected(seeds=True)
    assert found["pandas"]["rows"] == expected(seeds=False)
    assert found["echo"]["rows"] == _ECHOED
    assert found["apply"]["rows"] == expected(seeds=False)


def _assert_by_spark(found: dict[str, Any], aside: list[str], reason: str) -> None:
    """Check that all ran by Spark's transport, and that each operator said once why."""
    _assert_rows(found)
    assert [query["sent"] for query in found.values()] == [0] * 4
    pandas = [text for text in aside if "conversions of pandas" in text]
    assert len(pandas) <= 2 * (not _PANDAS_IN_BULK)
    assert len(aside) == 4, aside
    assert all(reason in text for text in aside if text not in pandas), aside


@pytest.mark.deep
@pytest.mark.parametrize(
    "settings",
    [
        # the buffers of such sockets are small, so that frames go out and come in in parts
        {"spark.python.unix.domain.socket.enabled": "true"},
        {"spark.python.use.daemon": "false"},
        {"spark.python.worker.reuse": "false"},
        {
            "spark.python.worker.idleTimeoutSeconds": "60",
            "spark.python.worker.killOnIdleTimeout": "true",
        },
    ],
    ids=lambda settings: next(iter(settings)).rpartition(".")[0].rpartition("python.")[2],
)
def test_every_kind_of_worker(tmp_path: Path, settings: dict[str, str]) -> None:
    """In bulk. What user code logs gets out."""
    found, aside, log = _job(tmp_path, settings)
    _assert_rows(found)
    assert found["row"]["sent"] > 0 and found["echo"]["sent"] > KEYS * TEXT
    assert (found["pandas"]["sent"] > 0) == _PANDAS_IN_BULK
    assert found["apply"]["sent"] == 7 * _PANDAS_IN_BULK
    assert len(aside) == 2 * (not _PANDAS_IN_BULK), aside
    assert "key 3 of user code" in log and "user code is closed" in log
    assert "key 3 of a function" in log


def _interpreter(tmp_path: Path, *, without: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Return a Python that has what this one has, but Millpond and what `without` names; and the
    directory of its packages.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "python")], check=True
    )
    python = tmp_path / "python" / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    packages = Path(done.stdout.strip())
    for place in (Path(pyspark.__file__).parents[1], _SITE):
        for entry in place.iterdir():
            name = entry.name.lower()
            if name.startswith(("millpond", "_editable", "__editable", *without)):
                continue
            # a file of paths would add Millpond's sources
            if entry.suffix != ".pth" and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    return python, packages


_SITE = Path(sysconfig.get_path("purelib"))


@pytest.mark.deep
def test_workers_without_millpond(tmp_path: Path) -> None:
    python, _ = _interpreter(tmp_path)
    found, aside, _ = _job(tmp_path, python=python)
    _assert_by_spark(found, aside, "No module named 'millpond'")


@pytest.mark.deep
def test_workers_with_another_millpond(tmp_path: Path) -> None:
    python, packages = _interpreter(tmp_path)
    shutil.copytree(
        Path(millpond.__file__).parent,
        packages / "millpond",
        ignore=shutil.ignore_patterns("jars", "__pycache__"),
    )
    version = packages / "millpond" / "_version.py"
    text = version.read_text()
    assert millpond.__version__ in text
    version.write_text(text.replace(millpond.__version__, "0.0.7"))
    found, aside, _ = _job(tmp_path, python=python)
    _assert_by_spark(found, aside, f"it has millpond 0.0.7, the driver {millpond.__version__}")


@pytest.mark.deep
def test_workers_without_pandas(tmp_path: Path) -> None:
    """As with Spark's transport, which needs pandas for some of the API."""
    python, packages = _interpreter(tmp_path, without=("pandas",))
    (packages / "millpond.pth").write_text(str(Path(millpond.__file__).parents[1]))
    found, _, _ = _job(tmp_path, python=python)
    shutil.rmtree(tmp_path / "job")
    expected_of_spark, _, _ = _job(tmp_path, transport_conf(SPARK), python=python)
    for query, outcome in expected_of_spark.items():
        assert found[query]["condition"] == outcome["condition"], query
        assert found[query]["rows"] == outcome["rows"], query


@pytest.mark.deep
def test_a_spark_that_was_not_tested(tmp_path: Path) -> None:
    """Another patch is enough."""
    jar = millpond_jar()
    assert jar is not None
    other = tmp_path / jar.name
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(other, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename == "millpond/build.properties":
                built = f"spark.version={pyspark.__version__}".encode()
                assert built in content
                minor = pyspark.__version__.rpartition(".")[0]
                content = content.replace(built, f"spark.version={minor}.77".encode())
            new.writestr(entry, content)
    found, aside, _ = _job(tmp_path, {"spark.jars": str(other)})
    _assert_by_spark(found, aside, f"this is {pyspark.__version__}")


@pytest.mark.deep
@pytest.mark.spark
def test_keys_that_a_worker_makes_that_takes_no_part(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pandas Spark's transport has no whole numbers beside a NULL, and the store says so: the
    driver did not know which transport runs.
    """
    python, _ = _interpreter(tmp_path)
    run, source = Run(tmp_path / "run"), Input(tmp_path / "input", _NUMBERS)
    conf = {PROVIDER: MILLPOND, "spark.sql.shuffle.partitions": "1"}
    for keys, executable in (((1, 2), sys.executable), ((3, None), str(python))):
        source.add([{"k": k, "v": 1} for k in keys])
        monkeypatch.setattr(spark.sparkContext, "pythonExec", executable)
        grouped = transform_with_state(source.stream(spark).groupBy("k"), "pandas")
        sums = grouped(Seeded("pandas"), "k double, what string, state string", "Update", "None")
        finish(start(spark, sums, run, output_mode="update", conf=conf), run)
        (operator,) = checkpoint.show(run.checkpoint).operators
        assert [store.scalable for store in operator.stores] == [None not in keys]
