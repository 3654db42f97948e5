"""Whether times among the grouping columns are the same in a worker as in the session.

With pandas, users get such a time as the clocks of the session's zone show it. Spark's transport
makes the key of the state from that again, by the worker's clocks. Where these show other times,
the key has another time than the row: in bulk the state would be looked for elsewhere.
"""

from __future__ import annotations

import functools
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, StructType, TimestampType

_WEEK_S = 7 * 86_400
# Of 1902 and of 2037. Arrow knows of no change of clocks that comes later.
_FIRST_S, _LAST_S = -2_145_916_800, 2_114_380_800


class OtherZoneError(Exception):
    """The clocks of this worker do not show the session's time."""


def check_zone(keys: StructType, zone: str) -> None:
    """Check that Spark's transport would keep the state under the time that the rows have.

    Args:
        keys: the grouping columns.
        zone: the session's.
    Raises: OtherZoneError: it would not.
    """
    if _has_times(keys) and not _is_own(zone):
        raise OtherZoneError(
            f"the session's time zone is {zone}, the worker's is another one, and a grouping column"
            " has a timestamp"
        )


def _has_times(of: DataType) -> bool:
    if isinstance(of, StructType):
        return any(_has_times(field.dataType) for field in of)
    return isinstance(of, TimestampType)


@functools.cache
def _is_own(zone: str) -> bool:
    # Zones that show the same in every week are one.
    moments = np.arange(_FIRST_S, _LAST_S, _WEEK_S)
    shown = pc.local_timestamp(pa.array(moments).cast(pa.timestamp("s", zone)))
    own = [moment + time.localtime(moment).tm_gmtoff for moment in moments.tolist()]
    return bool((shown.cast(pa.int64()).to_numpy() == own).all())
