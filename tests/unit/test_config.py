"""Options: defaults, parsing, bounds.

An error names the option, and says what would be right.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import config
from millpond.config import (
    BY_NAME,
    GIB,
    MIB,
    OPTIONS,
    PREFIX,
    SPARK_SETTINGS,
    SPARKS_ROCKSDB,
    Option,
    resolve,
)
from millpond.errors import ErrorKind, InvalidInputError
from millpond.reference import options_json, options_markdown, sparks_json
from tests.conftest import Golden


def test_defaults() -> None:
    values = resolve({})
    assert set(values) == set(BY_NAME) and len(BY_NAME) == len(OPTIONS)
    assert values["changelog.codec"] == "zstd"
    assert values["commit.fsync"] is True
    assert values["rocksdb.blockCache"] == 32 * MIB
    assert values["maxParallelism"] is None


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_every_default_is_valid(option: Option) -> None:
    assert resolve({option.name: option.default})[option.name] == option.default
    if option.default is not None:
        assert (
            resolve({option.full_name: config.default_text(option)})[option.name] == option.default
        )
    assert option.doc.endswith(".") and "|" not in option.doc


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("maxParallelism", "1024", 1024),
        ("maxParallelism", " 8 ", 8),
        ("maxParallelism", 65_536, 65_536),
        ("memory.budget", "64m", 64 * MIB),
        ("memory.budget", "1G", GIB),
        ("memory.budget", "2048kb", 2 * MIB),
        ("memory.budget", "1 GiB", GIB),
        ("memory.budget", "1048576", MIB),
        ("memory.budget", "1048576b", MIB),
        ("commit.fsync", "FALSE", False),
        ("commit.fsync", True, True),
        ("changelog.codec", "ZSTD", "zstd"),
        ("localDir", "/Data/Disk 1", "/Data/Disk 1"),
        ("gc.graceMs", "0", 0),
        ("localDir", None, None),
    ],
)
def test_values(name: str, text: object, value: object) -> None:
    assert resolve({name: text})[name] == value
    assert resolve({PREFIX + name: text})[name] == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("maxParallelism", "0", "from 1 to 65536"),
        ("maxParallelism", "65537", "from 1 to 65536"),
        ("maxParallelism", "8.0", "a whole number"),
        ("maxParallelism", "many", "a whole number"),
        ("maxParallelism", "1_000", "a whole number"),
        ("maxParallelism", "٣", "a whole number"),
        ("maxParallelism", True, "a whole number"),
        ("memory.budget", "63k", "from 64k to"),
        ("memory.budget", "64 parsecs", "a size such as 64m"),
        ("memory.budget", "-64m", "a size such as 64m"),
        ("memory.budget", "1.5g", "a size such as 64m"),
        ("memory.budget", "99999999999t", "a size such as 64m"),
        ("commit.fsync", "yes", "true or false"),
        ("commit.fsync", 1, "true or false"),
        ("changelog.codec", "snappy", "zstd, none"),
        ("changelog.codec", "lz4", "one of zstd, none"),
        ("localDir", "", "not empty"),
        ("gc.graceMs", "-1", "from 0 to"),
    ],
)
def test_invalid_values(name: str, text: object, expected: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        resolve({name: text})
    assert caught.value.kind is ErrorKind.INVALID_OPTION
    assert PREFIX + name in str(caught.value) and expected in str(caught.value)
    assert PREFIX + name in caught.value.hint


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("maxparallelism", "maxParallelism"),
        ("max.parallelism", "maxParallelism"),
        ("changelog.compression", "changelog.codec"),
        ("agent.pyton", "agent.python"),
        ("fsync", "commit.fsync"),
        ("rocksdb.blockCacheSizeMB", "rocksdb.blockCache"),
        ("", None),
        ("völlig anders", None),
    ],
)
def test_unknown_options(name: str, nearest: str | None) -> None:
    for key in (name, PREFIX + name):
        with pytest.raises(InvalidInputError) as caught:
            resolve({key: "1"})
        assert caught.value.kind is ErrorKind.UNKNOWN_OPTION
        assert key in str(caught.value)
        assert PREFIX + (nearest or "") in caught.value.hint


@given(st.sampled_from(OPTIONS), st.one_of(st.text(), st.integers(), st.floats(), st.booleans()))
def test_any_value_is_accepted_within_bounds_or_refused(option: Option, value: object) -> None:
    try:
        result = resolve({option.name: value})[option.name]
    except InvalidInputError as e:
        assert e.kind is ErrorKind.INVALID_OPTION
        return
    types: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "bytes": (int,),
        "bool": (bool,),
        "float": (int, float),
    }
    assert isinstance(result, types[option.type])
    if isinstance(result, (int, float)) and option.type != "bool":
        assert option.minimum is None or result >= option.minimum
        assert option.maximum is None or result <= option.maximum
    assert resolve({option.name: result})[option.name] == result


def test_size_text() -> None:
    for size_bytes, text in (
        (0, "0"),
        (1000, "1000"),
        (1024, "1k"),
        (32 * MIB, "32m"),
        (GIB + 1, str(GIB + 1)),
    ):
        assert config.size_text(size_bytes) == text


def test_json_for_the_jar() -> None:
    table = json.loads(options_json())
    assert table["prefix"] == PREFIX
    assert [row["name"] for row in table["options"]] == [option.name for option in OPTIONS]


def test_settings_of_sparks_stores() -> None:
    names = [setting.name for setting in SPARK_SETTINGS]
    assert len({name.lower() for name in names}) == len(names)
    for setting in SPARK_SETTINGS:
        assert setting.name.startswith("spark.sql.streaming.") and PREFIX not in setting.name
        assert setting.option is None or setting.option in BY_NAME
        assert not (setting.always and setting.option), "nothing has to be set"
        assert setting.doc.endswith(".") and "|" not in setting.doc
    table = json.loads(sparks_json())
    assert table["below"] == SPARKS_ROCKSDB
    assert [row["name"] for row in table["settings"]] == names
    instead = {row["name"]: row["instead"] for row in table["settings"]}
    assert instead[f"{SPARKS_ROCKSDB}maxMemoryUsageMB"] == f"{PREFIX}memory.budget"
    assert instead[f"{SPARKS_ROCKSDB}changelogCheckpointing.enabled"] is None


def test_documentation_is_up_to_date(golden: Golden, repository: Path) -> None:
    golden.check(repository / "docs/reference/configuration.md", options_markdown().encode())


def test_imports_little(repository: Path) -> None:
    """The build runs this module before anything is installed."""
    code = (
        "import sys; from millpond import reference; reference.options_json();"
        " reference.errors_json(); print([m for m in ('pyspark', 'py4j', 'pyarrow', 'rocksdict',"
        " 'boto3', 'numpy') if m in sys.modules])"
    )
    source = str(repository / "python/src")
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
