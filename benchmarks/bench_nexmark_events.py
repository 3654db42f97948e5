# SPDX-License-Identifier: Apache-2.0
"""The events of Nexmark as Parquet files: persons, auctions, bids, by the published rules.

The rules are those of the generators of Apache Beam and of nexmark/nexmark, in words of arrays. Of
50 events in a row one is a person, three are auctions, 46 are bids. Ids count up. A new row names
persons and auctions that are there, or that come soon (`LEAD`). One quirk is left out: in
nexmark/nexmark the number of a bid's bidder is 1,000 too high, so that it seldom is a person.

A file of each kind holds the events of one batch. Its numbers come from the seed and the file's
place alone, so that the same seed gives the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

KINDS = ("person", "auction", "bid")
EVENTS = 10_000_000  # by default
FIRST_ID = 1000  # of persons and of auctions
LEAD = 10  # ids that come soon and may be named already
PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
BASE_MS = 1_436_918_400_000  # 2015-07-15T00:00:00Z, as in Beam
EVENTS_PER_S = 10_000
ACTIVE_PERSONS, AUCTIONS_IN_FLIGHT = 1000, 100
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_EVERY = 100  # of that many persons or auctions in a row one is hot
HOT_AUCTIONS, HOT_BIDDERS, HOT_SELLERS, HOT_CHANNELS = 2, 4, 4, 2  # all but one of so many are hot
CHANNELS = 10_000
AVERAGE_BYTES = {"person": 200, "auction": 500, "bid": 100}
DAY_MS = 86_400_000
_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond"]
_CITIES += ["Seattle", "Kent", "Cheyenne"]
_FIRST = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"]
_FIRST += ["Walter"]
_LAST = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_POOL_BYTES = 1 << 20

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is generated: `events` in all, `per_file` of them in the three files of a batch."""

    seed: int
    events: int
    per_file: int

    def __post_init__(self) -> None:
        if self.per_file % EPOCH or self.events % self.per_file or self.events <= 0:
            raise ValueError(f"events of a file are a multiple of {EPOCH}, all events one of those")

    @property
    def files(self) -> int:
        """Return how many files each kind has."""
        return self.events // self.per_file


def at_ms(event: Longs) -> Longs:
    """Return the event time of events, in ms since 1970."""
    return BASE_MS + event * 1000 // EVENTS_PER_S


def last_person(event: Longs) -> Longs:
    """Return the number, from 0 on, of the last person at or before each event."""
    return event // EPOCH


def last_auction(event: Longs) -> Longs:
    """Return the number, from 0 on, of the last auction at or before each event."""
    place = np.clip(event % EPOCH - PERSONS, -1, AUCTIONS - 1)
    return event // EPOCH * AUCTIONS + place


class _Maker:
    """Makes the columns of one file."""

    def __init__(self, plan: Plan, file: int) -> None:
        self._random = np.random.default_rng([plan.seed, file])
        # The texts of all files come from one pool: it depends on the seed alone.
        pool = np.random.default_rng([plan.seed])
        letters = pool.integers(97, 123, _POOL_BYTES, dtype=np.uint8)
        self._extra = letters
        self._words = np.where(pool.integers(0, 13, _POOL_BYTES) == 0, np.uint8(95), letters)
        urls = [
            f"https://www.nexmark.com/{a}/{b}/{c}/item.htm?query=1" for a, b, c in self._paths()
        ]
        with_id = pool.integers(0, 10, CHANNELS) > 0
        numbers = pool.permutation(CHANNELS * 10)[:CHANNELS]
        cold = [
            f"{url}&channel_id={number}" if named else url
            for url, named, number in zip(urls[4:], with_id, numbers, strict=True)
        ]
        self._urls = pa.array(urls[:4] + cold)
        self._channels = pa.array(
            ["Google", "Facebook", "Baidu", "Apple", *(f"channel-{i}" for i in range(CHANNELS))]
        )

    def _paths(self) -> list[tuple[str, str, str]]:
        text = self._words[: (CHANNELS + 4) * 12].tobytes().decode()
        parts = [text[i : i + 4] for i in range(0, len(text), 4)]
        return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))

    def _below(self, bounds: Longs | int, rows: int) -> Longs:
        return self._random.integers(0, bounds, rows, dtype=np.int64)

    def _texts(self, lengths: Longs, pool: NDArray[np.uint8]) -> pa.Array:
        """Return texts of these lengths: pieces of a pool that begin anywhere."""
        begins = self._below(_POOL_BYTES - int(lengths.max(initial=0)), len(lengths))
        ends = np.cumsum(lengths)
        within = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
        data = pool[np.repeat(begins, lengths) + within]
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.StringArray.from_buffers(len(lengths), *buffers[1:])

    def _string(self, rows: int, longest: int) -> pa.Array:
        return self._texts(3 + self._below(longest - 3, rows), self._words)

    def _padding(self, kind: str, taken: Longs) -> pa.Array:
        """Return texts that bring a row to its average size, give or take a fifth."""
        left = np.maximum(AVERAGE_BYTES[kind] - taken, 0)
        spread = np.rint(left * 0.2).astype(np.int64)
        more = self._below(np.maximum(2 * spread, 1), len(taken))
        return self._texts(left - spread + more, self._extra)

    def _chosen(self, rows: int, of: list[str]) -> pa.Array:
        return pa.array(of).take(pa.array(self._below(len(of), rows)))

    def _prices(self, rows: int) -> Longs:
        return np.rint(10.0 ** (self._random.random(rows) * 6.0) * 100.0).astype(np.int64)

    def _some_person(self, event: Longs) -> Longs:
        there = last_person(event) + 1
        active = np.minimum(there, ACTIVE_PERSONS)
        return there - active + self._below(active + LEAD, len(event))

    def _hot(self, rows: int, ratio: int) -> NDArray[np.bool_]:
        return self._below(ratio, rows) > 0

    def person(self, event: Longs) -> pa.Table:
        n = len(event)
        name = pc.binary_join_element_wise(self._chosen(n, _FIRST), self._chosen(n, _LAST), " ")
        end = pa.scalar(".com")
        email = pc.binary_join_element_wise(
            self._string(n, 7), pc.binary_join_element_wise(self._string(n, 5), end, ""), "@"
        )
        groups = [f"{i:04d}" for i in range(10_000)]
        card = pc.binary_join_element_wise(*(self._chosen(n, groups) for _ in range(4)), " ")
        city, state = self._chosen(n, _CITIES), self._chosen(n, _STATES)
        taken = sum((_lengths(t) for t in (name, email, card, city, state)), np.full(n, 8))
        columns = {
            "id": last_person(event) + FIRST_ID,
            "name": name,
            "email_address": email,
            "credit_card": card,
            "city": city,
            "state": state,
            "date_time": at_ms(event),
            "extra": self._padding("person", taken),
        }
        return pa.table(columns)

    def auction(self, event: Longs) -> pa.Table:
        n = len(event)
        hot = last_person(event) // HOT_EVERY * HOT_EVERY
        seller = np.where(self._hot(n, HOT_SELLERS), hot, self._some_person(event))
        initial = self._prices(n)
        ahead_ms = at_ms(event + AUCTIONS_IN_FLIGHT * EPOCH // AUCTIONS) - at_ms(event)
        name, description = self._string(n, 20), self._string(n, 100)
        columns = {
            "id": last_auction(event) + FIRST_ID,
            "item_name": name,
            "description": description,
            "initial_bid": initial,
            "reserve": initial + self._prices(n),
            "date_time": at_ms(event),
            "expires": at_ms(event) + 1 + self._below(np.maximum(ahead_ms * 2, 1), n),
            "seller": seller + FIRST_ID,
            "category": FIRST_CATEGORY + self._below(CATEGORIES, n),
            "extra": self._padding("auction", 48 + _lengths(name) + _lengths(description)),
        }
        return pa.table(columns)

    def bid(self, event: Longs) -> pa.Table:
        n, last = len(event), last_auction(event)
        first = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
        any_auction = first + self._below(last - first + 1 + LEAD, n)
        hot_auction = last // HOT_EVERY * HOT_EVERY
        # The second person of a hundred, so that it is not the hot seller.
        hot_bidder = last_person(event) // HOT_EVERY * HOT_EVERY + 1
        channel = np.where(
            self._hot(n, HOT_CHANNELS), self._below(4, n), 4 + self._below(CHANNELS, n)
        )
        columns = {
            "auction": np.where(self._hot(n, HOT_AUCTIONS), hot_auction, any_auction) + FIRST_ID,
            "bidder": np.where(self._hot(n, HOT_BIDDERS), hot_bidder, self._some_person(event))
            + FIRST_ID,
            "price": self._prices(n),
            "channel": self._channels.take(pa.array(channel)),
            "url": self._urls.take(pa.array(channel)),
            "date_time": at_ms(event),
            "extra": self._padding("bid", np.full(n, 32)),
        }
        return pa.table(columns)


def _lengths(texts: pa.Array) -> Longs:
    lengths: Longs = pc.binary_length(texts).to_numpy().astype(np.int64)
    return lengths


def tables(plan: Plan, file: int) -> dict[str, pa.Table]:
    """Return the events of a batch by kind, in the order of their event time."""
    event = np.arange(file * plan.per_file, (file + 1) * plan.per_file, dtype=np.int64)
    place, make = event % EPOCH, _Maker(plan, file)
    return {
        "person": make.person(event[place < PERSONS]),
        "auction": make.auction(event[(place >= PERSONS) & (place < PERSONS + AUCTIONS)]),
        "bid": make.bid(event[place >= PERSONS + AUCTIONS]),
    }


def closing(like: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Return a row of each kind a day later. It closes all windows, and matches nothing."""
    numbers = {"date_time": BASE_MS + DAY_MS, "expires": BASE_MS + DAY_MS, "id": -1}
    numbers |= {"seller": -2, "auction": -3, "bidder": -4}

    def last(table: pa.Table) -> pa.Table:
        row = table.slice(0, 1)
        for i, field in enumerate(table.schema):
            if field.name in numbers:
                row = row.set_column(i, field, pa.array([numbers[field.name]], field.type))
        return row

    return {kind: last(table) for kind, table in like.items()}


def generate(plan: Plan, cache: Path) -> Path:
    """Return the folder with the files of a plan, and write them unless they are there.

    `<kind>/00000.parquet` and so on; `closing/<kind>/99999.parquet`; `plan.json`.
    """
    folder = cache / f"nexmark-{plan.seed}-{plan.events}-{plan.per_file}"
    if folder.is_dir():
        return folder
    fresh = cache / f".{folder.name}-{os.getpid()}"
    try:
        for file in range(plan.files):
            made = tables(plan, file)
            _write(made, fresh, file)
            if file == 0:
                _write(closing(made), fresh / "closing", 99_999)
        (fresh / "plan.json").write_text(json.dumps(asdict(plan)))
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _write(made: dict[str, pa.Table], folder: Path, file: int) -> None:
    for kind, table in made.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        texts = {"channel", "url", "city", "state", "name"} & set(table.column_names)
        target = folder / kind / f"{file:05d}.parquet"
        pq.write_table(table, target, use_dictionary=sorted(texts))
        # Spark reads the oldest file first.
        at_s = BASE_MS // 1000 + file
        os.utime(target, (at_s, at_s))
