"""Spark's own conversions between Arrow and pandas: private to PySpark, and different by line."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import StructField, StructType
from pyspark.worker import RunnerConf


class Conversion:
    """Converts as Spark's worker does for this operator."""

    def __init__(self, return_type: StructType, runner_conf: dict[str, str]) -> None:
        conf = RunnerConf(runner_conf)
        self._conf = conf
        self.timezone: str | None = conf.timezone
        most = conf.arrow_max_records_per_batch
        self.max_rows: int = most if most > 0 else 2**31 - 1
        self._schema = StructType([StructField("_0", return_type)])

    def to_pandas(self, batch: pa.RecordBatch) -> list[pd.Series[Any]]:
        """Return each column."""
        found: list[pd.Series[Any]] = ArrowBatchTransformer.to_pandas(
            batch,
            timezone=self._conf.timezone,  # type: ignore[arg-type]
            prefer_int_ext_dtype=self._conf.prefer_int_ext_dtype,
        )
        return found

    def from_pandas(self, frame: pd.DataFrame) -> pa.RecordBatch:
        """Return the columns of results."""
        return ArrowBatchTransformer.flatten_struct(self._wrapped(frame))

    def struct_from_pandas(self, frame: pd.DataFrame) -> pa.StructArray:
        """Return the columns of results as one."""
        return self._wrapped(frame).column(0)

    def _wrapped(self, frame: pd.DataFrame) -> pa.RecordBatch:
        return PandasToArrowConversion.convert(
            [frame],
            self._schema,
            timezone=self._conf.timezone,
            safecheck=self._conf.safecheck,
            arrow_cast=True,
            assign_cols_by_name=self._conf.assign_cols_by_name,
            int_to_decimal_coercion_enabled=self._conf.int_to_decimal_coercion_enabled,
        )


_PICKLES = CPickleSerializer()


def pickled(value: Any) -> bytes:
    """Return a value of a state as Spark's worker sends it."""
    found: bytes = _PICKLES.dumps(value)  # type: ignore[no-untyped-call]
    return found


def unpickled(value: bytes) -> Any:
    """Return a value of a state that Spark's JVM sent."""
    return _PICKLES.loads(value)  # type: ignore[no-untyped-call]


def arrow_streams() -> Any:
    """Return the serializer with which Spark's worker reads and writes Arrow."""
    return ArrowStreamSerializer(write_start_stream=True)
