"""The four jobs. The demo builds each twice: over streams, and over the same files as one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.demo.data import MARKER_TIME, Feeds

Reader = Callable[[str], DataFrame]
Builder = Callable[[Reader, str, bool], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One streaming query of the demo."""

    name: str
    title: str  # for people
    feeds: tuple[str, ...]  # the names of its inputs
    event_time: str  # the output column that tells the marker from real rows
    build: Builder  # (reader of a feed by name, watermark delay, streaming?) -> result


def hourly_delays(read: Reader, lateness: str, streaming: bool) -> DataFrame:
    """Return flights, departures and delays in minutes, by carrier and scheduled hour."""
    flights = read("flights").withWatermark("event_time", lateness)
    late = F.count_if(F.col("dep_delay") > 15)
    return (
        flights.groupBy(F.window("event_time", "1 hour"), "carrier")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("dep_delay").alias("departed"),
            late.alias("late"),
            F.sum("dep_delay").alias("delay_minutes"),
            F.max("dep_delay").alias("worst_minutes"),
        )
        .withColumn("hour", F.col("window.start"))
        .select("hour", "carrier", "flights", "departed", "late", "delay_minutes", "worst_minutes")
    )


def unique_flights(read: Reader, lateness: str, streaming: bool) -> DataFrame:
    """Return each delivered flight once, all columns."""
    delivered = read("deliveries").withWatermark("event_time", lateness)
    if streaming:
        return delivered.dropDuplicatesWithinWatermark(["flight_id"])
    # Spark has no dropDuplicatesWithinWatermark for batches: a batch has no watermark.
    return delivered.dropDuplicates(["flight_id"])


def flights_with_weather(read: Reader, lateness: str, streaming: bool) -> DataFrame:
    """Return every flight with the weather at its airport in its hour; null if it is unknown."""
    flights = read("flights").withWatermark("flight_hour", lateness)
    weather = read("weather").withWatermark("weather_hour", lateness)
    same = (F.col("origin") == F.col("station")) & (F.col("flight_hour") == F.col("weather_hour"))
    return flights.join(weather, same, "left_outer").select(
        "flight_id", "flight_hour", "origin", "dep_delay", "temp", "wind_speed", "precip", "visib"
    )


def aircraft_sessions(read: Reader, lateness: str, streaming: bool) -> DataFrame:
    """Return each aircraft's runs of departures less than twelve hours apart."""
    flights = (
        read("flights").where(F.col("tailnum").isNotNull()).withWatermark("event_time", lateness)
    )
    return (
        flights.groupBy(F.session_window("event_time", "12 hours"), "tailnum")
        .agg(
            F.count(F.lit(1)).alias("legs"),
            F.sum("distance").alias("miles"),
            F.sum("air_time").alias("minutes_in_air"),
            F.max("event_time").alias("last_departure"),
        )
        .withColumn("begin", F.col("session_window.start"))
        .select("begin", "tailnum", "legs", "miles", "minutes_in_air", "last_departure")
    )


JOBS: tuple[Job, ...] = (
    Job(
        name="hourly",
        title="hourly delays per carrier",
        feeds=("flights",),
        event_time="hour",
        build=hourly_delays,
    ),
    Job(
        name="unique",
        title="duplicate removal",
        feeds=("deliveries",),
        event_time="event_time",
        build=unique_flights,
    ),
    Job(
        name="weather",
        title="flights joined with weather",
        feeds=("flights", "weather"),
        event_time="flight_hour",
        build=flights_with_weather,
    ),
    Job(
        name="sessions",
        title="sessions per aircraft",
        feeds=("flights",),
        event_time="begin",
        build=aircraft_sessions,
    ),
)


def stream_reader(spark: SparkSession, feeds: Feeds) -> Reader:
    """Return a reader that replays a feed one file per micro-batch, oldest first."""

    def read(feed: str) -> DataFrame:
        folder = feeds.folder(feed)
        schema = spark.read.parquet(folder).schema
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)

    return read


def batch_reader(spark: SparkSession, feeds: Feeds) -> Reader:
    """Return a reader that reads a whole feed, with markers. `without_marker` removes them."""
    return lambda feed: spark.read.parquet(feeds.folder(feed))


def without_marker(job: Job, result: DataFrame) -> DataFrame:
    """Return `result` without the rows that come from the markers."""
    day_before = MARKER_TIME.strftime("%Y-01-01 00:00:00")
    return result.where(F.col(job.event_time) < F.lit(day_before).cast("timestamp"))
