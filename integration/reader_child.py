"""Another Spark application that reads the state of a running query.

Arguments: the Spark checkpoint, a local directory, and a JSON list of reader options, each an
object. It prints one JSON line: the sorted rows, as texts, for each options object.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

import millpond
from integration.jvm import LIGHT_DRIVER


def main(checkpoint: str, local_dir: str, readings: list[dict[str, str]]) -> None:
    """Read the state by each of the options, and print the rows."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("state reader")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.local.dir": local_dir,
        "spark.sql.warehouse.dir": os.path.join(local_dir, "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": LIGHT_DRIVER,
    }.items():
        builder = builder.config(name, value)
    spark = millpond.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found = []
    for options in readings:
        reader = spark.read.format("statestore")
        for name, value in options.items():
            reader = reader.option(name, value)
        found.append(sorted(map(str, reader.load(checkpoint).collect())))
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
