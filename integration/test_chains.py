"""Chains of random commands, with real queries between them. `integration/chains.py` has them.

`make chains CHAINS=500 FIRST=1` plays more of them. A failure names its seed:
`make chains CHAINS=1 FIRST=<seed>` plays it again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.chains import Chain

_FIRST, _COUNT = (
    int(os.environ.get("MILLPOND_FIRST", "1")),
    int(os.environ.get("MILLPOND_CHAINS", "20")),
)


@pytest.mark.spark
@pytest.mark.deep
@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_nothing_is_lost_over_a_chain(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chain = Chain(spark, tmp_path, seed)
    try:
        chain.play()
    except BaseException as e:
        e.add_note("the chain: " + "; ".join(chain.trace))
        raise
    # No disk holds 500 chains. Errors are ignored: maintenance of loaded stores may still write.
    shutil.rmtree(tmp_path, ignore_errors=True)
