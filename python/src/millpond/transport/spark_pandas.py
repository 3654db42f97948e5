"""Spark's own conversions between Arrow and pandas: private to PySpark, and different by line."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.types import StructField, StructType
from pyspark.worker import RunnerConf


class Conversion:
    """Converts as Spark's worker does for this operator."""

    def __init__(self, return_type: StructType, runner_conf: dict[str, str]) -> None:
        conf = RunnerConf(runner_conf)
        self._conf = conf
        self.timezone: str | None = conf.timezone
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
        wrapped = PandasToArrowConversion.convert(
            [frame],
            self._schema,
            timezone=self._conf.timezone,
            safecheck=self._conf.safecheck,
            arrow_cast=True,
            assign_cols_by_name=self._conf.assign_cols_by_name,
            int_to_decimal_coercion_enabled=self._conf.int_to_decimal_coercion_enabled,
        )
        return ArrowBatchTransformer.flatten_struct(wrapped)
