"""A query with its state on a storage that refuses it or does not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.cases import EVENTS, events
from integration.jvm import MILLPOND
from integration.streams import Input, settings

_STATE = "spark.sql.streaming.stateStore."


class Query:
    """A query that counts by key, with its state below `uri`.

    Args:
        hadoop: Hadoop's settings by which the storage is reached.
        names: what each error says; None: `uri`.
        options: Millpond's, by their names.
    """

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        hadoop: Mapping[str, str],
        work: Path,
        *,
        names: Sequence[str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._spark, self._uri, self._hadoop, self._work = spark, uri, hadoop, work
        self._names, self._options = names or (uri,), options or {}
        self._rows: list[str] = []
        self._jobs: list[int] = []
        self._input = Input(work / "input", EVENTS)
        self._input.add(events(("a", 1.0, 1), ("b", 1.0, 2), ("a", 2.0, 3)))

    def _run(
        self, hadoop: Mapping[str, str], without: str | None, options: Mapping[str, str]
    ) -> None:
        def sink(batch: DataFrame, _: int) -> None:
            self._rows += sorted(repr(row) for row in batch.collect())

        conf = {
            f"{_STATE}providerClass": MILLPOND,
            f"{_STATE}millpond.storage.uri": self._uri,
            **{f"{_STATE}millpond.{n}": v for n, v in {**self._options, **options}.items()},
            **{name: value for name, value in self._hadoop.items() if name != without},
            **hadoop,
        }
        frame = self._input.stream(self._spark).groupBy("k").count()
        with settings(self._spark, conf):
            writer = frame.writeStream.outputMode("update").foreachBatch(sink)
            writer = writer.option("checkpointLocation", str(self._work / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), query.lastProgress
        finally:
            tracker = self._spark.sparkContext.statusTracker()
            self._jobs = list(tracker.getJobIdsForGroup(str(query.runId)))

    def refused(
        self, *says: str, hadoop: Mapping[str, str] | None = None, without: str | None = None
    ) -> None:
        """The query fails before its first task. The error has the names, and `says`.

        Args:
            hadoop: settings in place of the right ones.
            without: the setting that is missing.
        """
        with pytest.raises(StreamingQueryException) as caught:
            self._run(hadoop or {}, without, {})
        assert self._jobs == [], "a task ran"
        said = str(caught.value).partition("\n")[0]
        for text in (*self._names, *says):
            assert text in said, said

    def goes_on(
        self,
        hadoop: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """With the right settings, or these, the same Spark checkpoint goes on."""
        self._run(hadoop or {}, None, options or {})
        assert self._rows == ["Row(k='a', count=2)", "Row(k='b', count=1)"]
