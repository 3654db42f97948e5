"""Queries in Spark's real-time mode: stores whose keys do not lie where their bytes say."""

from __future__ import annotations

from pathlib import Path

import pytest

import millpond
from integration.harness import millponds_own
from integration.jvm import IS_SPARK_4_2
from integration.real_time import RealTimeJob
from millpond import checkpoint
from millpond.errors import ErrorKind, MillpondError

pytestmark = [pytest.mark.spark, millponds_own]


@pytest.mark.skipif(IS_SPARK_4_2, reason="Spark 4.2 has no state in real-time mode")
def test_keys_that_lie_by_something_else_stay_where_they_are(tmp_path: Path) -> None:
    """In one partition no key was in a wrong one, and real-time mode has none of Millpond's nodes:
    the state was rescaled. Then most keys began anew.
    """
    with RealTimeJob(tmp_path / "job", conf={"spark.sql.shuffle.partitions": "1"}) as job:
        # the same job's next query has its keys where their bytes say
        for query in ("typed-key", "no-time"):
            job.do("new_source")
            job.do("start", query=query, seconds=0.5)
            job.do("add", rows=[f"a,{1_700_000_000 + i},{i}" for i in range(20)])
            job.do("settle")
            job.do("stop")
        with pytest.raises(MillpondError, match="or with a collation") as caught:
            millpond.rescale(job.work / "typed-key", 4)
        assert caught.value.kind is ErrorKind.STORE_UNSCALABLE
        assert millpond.rescale(job.work / "no-time", 4).partitions == 4
        for query in ("typed-key", "no-time"):
            assert checkpoint.verify(job.work / query).problems == []
