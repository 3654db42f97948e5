"""Options below `spark.sql.streaming.stateStore.millpond.`

`table.py` declares them, `values.py` reads what a user sets. `sparks.py` has the settings of
Spark's own stores that they replace. The build runs this package before it is installed. So it
imports nothing but the standard library and `millpond.errors`.
"""

from millpond.config.sparks import SPARK_SETTINGS, SPARKS_ROCKSDB, SparkSetting
from millpond.config.table import (
    BACKENDS,
    BY_NAME,
    DEFAULT_BACKEND,
    GIB,
    KIB,
    MIB,
    OPTIONS,
    PREFIX,
    TIB,
    Option,
    OptionType,
    OptionValue,
)
from millpond.config.values import (
    default_text,
    expected_text,
    number_text,
    refuse_near,
    resolve,
    setting_text,
    size_text,
)

__all__ = [
    "BACKENDS",
    "BY_NAME",
    "DEFAULT_BACKEND",
    "GIB",
    "KIB",
    "MIB",
    "OPTIONS",
    "PREFIX",
    "SPARKS_ROCKSDB",
    "SPARK_SETTINGS",
    "TIB",
    "Option",
    "OptionType",
    "OptionValue",
    "SparkSetting",
    "default_text",
    "expected_text",
    "number_text",
    "refuse_near",
    "resolve",
    "setting_text",
    "size_text",
]
