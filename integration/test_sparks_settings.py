"""Settings of Spark's own stores that do nothing on Millpond: the driver's log names them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from integration.harness import millponds_own
from integration.processes import wait_until
from integration.streams import count_numbers

pytestmark = millponds_own

_STORE = "spark.sql.streaming.stateStore."
_LOGGER = "org.apache.spark.sql.millpond.driver.SparksSettings"


@contextmanager
def _logged(spark: SparkSession) -> Iterator[Any]:
    """Collect what the driver logs of such settings, a message a line, in a Java StringWriter."""
    jvm: Any = spark._jvm
    text = jvm.java.io.StringWriter()
    log4j = jvm.org.apache.logging.log4j
    appender = log4j.core.appender.WriterAppender.createAppender(
        None, None, text, "settings", False, False
    )
    appender.start()
    log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.WARN)
    logger = log4j.LogManager.getContext(False).getLogger(_LOGGER)
    logger.addAppender(appender)
    try:
        yield text
    finally:
        logger.removeAppender(appender)
        log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.ERROR)
        appender.stop()


def _warnings(spark: SparkSession, checkpoint: Path, conf: dict[str, str]) -> list[str]:
    """Return the warnings of one run of a count."""
    with _logged(spark) as text:
        query = count_numbers(spark, checkpoint, available_now=False, conf=conf)
        try:
            wait_until(
                lambda: len(query.recentProgress) > 1,
                seconds=60,
                what="two batches",
            )
        finally:
            query.stop()
        return str(text.toString()).splitlines()


def test_each_run_names_them_once(spark: SparkSession, tmp_path: Path) -> None:
    dropped = {
        f"{_STORE}rocksdb.maxMemoryUsageMB": "500",
        f"{_STORE}rocksdb.compactOnCommit": "true",
        # Millpond always does that.
        f"{_STORE}rocksdb.changelogCheckpointing.enabled": "true",
    }
    for _ in range(2):  # the second run has more settings, from the offset log
        (line,) = _warnings(spark, tmp_path / "pond", dropped)
        assert f"{_STORE}rocksdb.maxMemoryUsageMB ({_STORE}millpond.memory.budget)" in line
        assert f"{_STORE}rocksdb.compactOnCommit (none)" in line
        assert line.count("memory.budget") == 1
        for other in ("500", "changelogCheckpointing", "codec", "formatVersion", "minDeltas"):
            assert other not in line


def test_nothing_is_said_where_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    assert _warnings(spark, tmp_path / "pond", {}) == []
    told = {
        f"{_STORE}rocksdb.trackTotalNumberOfRows": "false",
        f"{_STORE}millpond.numKeys.exact": "false",
    }
    assert _warnings(spark, tmp_path / "pond", told) == []
