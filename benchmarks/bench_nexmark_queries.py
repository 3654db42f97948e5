# SPDX-License-Identifier: Apache-2.0
"""The queries of Nexmark that keep state, for Spark: as a stream, and as a batch that checks it.

Each is written twice. The stream is what a user of Spark writes. The batch has none of the stream's
state: it is plain SQL over the same rows, so that both agree only if both are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

Inputs = Mapping[str, DataFrame]
_LATENESS = "4 seconds"  # as Nexmark's tables for Flink have it
_SCALA = "org.apache.spark.sql.millpond.bench.NexmarkQueries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query.

    Attributes:
        kinds: the events that it reads.
        stream, batch: what makes of the events the result.
        key: the last row of a key counts. Empty: nothing is replaced.
        scala: it is `transformWithState`, which Spark's heap store does not have.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    stream: Callable[[Inputs], DataFrame]
    batch: Callable[[Inputs], DataFrame]
    mode: str = "append"
    key: tuple[str, ...] = ()
    scala: bool = False


def _scala(name: str, rows: DataFrame) -> DataFrame:
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    return DataFrame(getattr(getattr(jvm, _SCALA), name)(rows._jdf), spark)


def _timed(rows: DataFrame) -> DataFrame:
    return rows.withColumn("at", f.timestamp_millis("date_time"))


def _marked(rows: DataFrame) -> DataFrame:
    return _timed(rows).withWatermark("at", _LATENESS)


def _first(rows: DataFrame, by: tuple[str, ...], order: list[Column], most: int) -> DataFrame:
    """Return the rows that come first of those with the same `by`, with their `rank`."""
    rank = f.row_number().over(Window.partitionBy(*by).orderBy(*order))
    return rows.withColumn("rank", rank).where(f.col("rank") <= most)


def _q3(of: Inputs) -> DataFrame:
    auctions = of["auction"].where("category = 10").select("seller", f.col("id").alias("auction"))
    persons = (
        of["person"].where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    )
    joined = auctions.join(persons, f.expr("seller = id"))
    return joined.select("name", "city", "state", "auction")


def _bids_of_windows(bids: DataFrame) -> DataFrame:
    windows = bids.groupBy(f.window("at", "10 seconds", "2 seconds"), "auction")
    return windows.agg(f.count("*").alias("num"))


def _q5(of: Inputs) -> DataFrame:
    counts = _bids_of_windows(_marked(of["bid"]))
    # The highest count comes first, and all that are equal to it are kept.
    of_window = counts.groupBy("window").agg(
        f.max_by(f.struct("auction", "num"), "num", 64).alias("top")
    )
    rows = of_window.select("window", f.explode(f.expr("filter(top, t -> t.num = top[0].num)")))
    return rows.select("window", "col.auction", "col.num")


def _q5_batch(of: Inputs) -> DataFrame:
    counts = _bids_of_windows(_timed(of["bid"]))
    most = counts.groupBy("window").agg(f.max("num").alias("num"))
    return counts.join(most, ["window", "num"]).select("window", "auction", "num")


def _q7(of: Inputs) -> DataFrame:
    most = (
        _marked(of["bid"])
        .groupBy(f.window("at", "10 seconds"))
        .agg(f.max("price").alias("most"))
        .select("most", f.window_time("window").alias("ends"))
    )
    bids = _marked(of["bid"]).select("auction", "bidder", "price", "at", "extra")
    near = f.expr("price = most AND at <= ends AND at > ends - INTERVAL 10 SECONDS")
    return bids.join(most, near).select("auction", "bidder", "price", "at", "extra")


def _q7_batch(of: Inputs) -> DataFrame:
    bids = _timed(of["bid"]).withColumn("window", f.window("at", "10 seconds"))
    most = bids.groupBy("window").agg(f.max("price").alias("price"))
    rows = bids.join(most, ["window", "price"])
    return rows.select("auction", "bidder", "price", "at", "extra")


def _q8(of: Inputs, mark: Callable[[DataFrame], DataFrame]) -> DataFrame:
    window = f.window("at", "10 seconds")
    persons = mark(of["person"]).groupBy(window, "id", "name").agg(f.count("*"))
    sellers = mark(of["auction"]).groupBy(window.alias("of"), "seller").agg(f.count("*"))
    joined = persons.join(sellers, f.expr("id = seller AND window = of"))
    return joined.select("id", "name", f.col("window.start").alias("begin"))


def _sales(of: Inputs) -> DataFrame:
    """Return auctions and bids as `NexmarkQueries.Event`."""
    zero = f.lit(0).cast("long")
    auctions = _timed(of["auction"]).select(
        f.col("id").alias("auction"),
        f.lit(False).alias("isBid"),
        f.col("date_time").alias("atMs"),
        f.concat_ws("|", "item_name", "description", "initial_bid", "reserve", "extra").alias(
            "text"
        ),
        "seller",
        "category",
        f.col("expires").alias("expiresMs"),
        zero.alias("bidder"),
        zero.alias("price"),
        "at",
    )
    bids = _timed(of["bid"]).select(
        "auction",
        f.lit(True).alias("isBid"),
        f.col("date_time").alias("atMs"),
        f.col("extra").alias("text"),
        zero.alias("seller"),
        zero.alias("category"),
        zero.alias("expiresMs"),
        "bidder",
        "price",
        "at",
    )
    return auctions.union(bids)


def _winning(name: str) -> Callable[[Inputs], DataFrame]:
    return lambda of: _scala(name, _sales(of).withWatermark("at", _LATENESS))


def _winners(of: Inputs) -> DataFrame:
    rows = _sales(of)
    auctions, bids = rows.where("NOT isBid").alias("a"), rows.where("isBid").alias("b")
    valid = f.expr("a.auction = b.auction AND b.atMs BETWEEN a.atMs AND a.expiresMs")
    order = [f.desc("b.price"), f.col("b.atMs"), f.col("b.bidder"), f.col("b.text")]
    return _first(auctions.join(bids, valid), ("a.auction",), order, 1).select(
        *(f"a.{c}" for c in ("auction", "seller", "category", "expiresMs", "text")),
        *(
            "b.bidder",
            "b.price",
            f.col("b.atMs").alias("bidAtMs"),
            f.col("b.text").alias("bidText"),
        ),
        f.timestamp_millis(f.col("a.expiresMs") + 1).alias("closed"),
    )


def _q4_batch(of: Inputs) -> DataFrame:
    categories = _winners(of).groupBy(f.col("category").alias("key"))
    return categories.agg(f.avg("price").alias("average"))


def _q6_batch(of: Inputs) -> DataFrame:
    order = [f.desc("expiresMs"), f.desc("auction")]
    return (
        _first(_winners(of), ("seller",), order, 10)
        .groupBy(f.col("seller").alias("key"))
        .agg(f.avg("price").alias("average"))
    )


def _q11(of: Inputs, mark: Callable[[DataFrame], DataFrame]) -> DataFrame:
    sessions = mark(of["bid"]).groupBy(f.session_window("at", "10 seconds"), "bidder")
    return sessions.agg(f.count("*").alias("bids"))


_LEVELS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _day() -> Column:
    return f.date_format("at", "yyyy-MM-dd").alias("day")


def _priced(of: Inputs, channel: str) -> DataFrame:
    """Return bids as `NexmarkQueries.Priced`."""
    channels = f.expr(channel).alias("channel")
    return _timed(of["bid"]).select(channels, _day(), "auction", "bidder", "price")


def _reports(of: Inputs, channel: str) -> DataFrame:
    levels = [f.lit(True), *map(f.expr, _LEVELS)]
    groups = _priced(of, channel).groupBy("channel", "day")
    return groups.agg(
        f.array(*(f.count_if(level) for level in levels)).alias("bids"),
        *(
            f.array(*(f.count_distinct(f.when(level, f.col(of_what))) for level in levels)).alias(
                f"{of_what}s"
            )
            for of_what in ("bidder", "auction")
        ),
    )


def _q17(of: Inputs) -> DataFrame:
    return (
        _timed(of["bid"])
        .groupBy("auction", _day())
        .agg(
            f.count("*").alias("bids"),
            *(f.count_if(f.expr(level)).alias(f"rank{i}") for i, level in enumerate(_LEVELS, 1)),
            f.min("price").alias("least"),
            f.max("price").alias("most"),
            f.avg("price").alias("average"),
            f.sum("price").alias("sum"),
        )
    )


_LAST = ("date_time", "price", "channel", "url", "extra")


def _q18(of: Inputs) -> DataFrame:
    last = of["bid"].groupBy("bidder", "auction").agg(f.max(f.struct(*_LAST)).alias("last"))
    return last.select("bidder", "auction", "last.*")


def _q18_batch(of: Inputs) -> DataFrame:
    order = [f.desc(column) for column in _LAST]
    return _first(of["bid"], ("bidder", "auction"), order, 1).select("bidder", "auction", *_LAST)


# Of equal prices the earlier bid comes first, then the columns say which.
_DEAREST = ("price", "earlier", "bidder", "channel", "url", "extra")


def _q19(of: Inputs) -> DataFrame:
    bids = of["bid"].withColumn("earlier", -f.col("date_time"))
    row = f.struct(*_DEAREST)
    return bids.groupBy("auction").agg(f.max_by(row, row, 10).alias("top"))


def _q19_batch(of: Inputs) -> DataFrame:
    bids = of["bid"].withColumn("earlier", -f.col("date_time"))
    ranked = _first(bids, ("auction",), [f.desc(column) for column in _DEAREST], 10)
    every = f.sort_array(f.collect_list(f.struct("rank", *_DEAREST))).alias("ranked")
    rows = ranked.groupBy("auction").agg(every)
    top = f.transform("ranked", lambda row: f.struct(*(row[c].alias(c) for c in _DEAREST)))
    return rows.select("auction", top.alias("top"))


def _q20(of: Inputs) -> DataFrame:
    bids = of["bid"].select(
        "auction",
        "bidder",
        "price",
        "channel",
        "url",
        "date_time",
        f.col("extra").alias("bid_extra"),
    )
    auctions = (
        of["auction"].where("category = 10").withColumnRenamed("date_time", "auction_date_time")
    )
    return bids.join(auctions, f.expr("auction = id"))


QUERIES: dict[str, Query] = {
    q.name: q
    for q in (
        Query(
            name="q3",
            title="local item suggestion",
            kinds=("person", "auction"),
            stream=_q3,
            batch=_q3,
        ),
        Query(
            name="q4",
            title="average price of a category",
            kinds=("auction", "bid"),
            stream=_winning("averages"),
            batch=_q4_batch,
            key=("key",),
            scala=True,
        ),
        Query(
            name="q5",
            title="hot items",
            kinds=("bid",),
            stream=_q5,
            batch=_q5_batch,
        ),
        Query(
            name="q6",
            title="average of a seller's last ten",
            kinds=("auction", "bid"),
            stream=_winning("lastTen"),
            batch=_q6_batch,
            key=("key",),
            scala=True,
        ),
        Query(name="q7", title="highest bid", kinds=("bid",), stream=_q7, batch=_q7_batch),
        Query(
            name="q8",
            title="new users",
            kinds=("person", "auction"),
            stream=lambda of: _q8(of, _marked),
            batch=lambda of: _q8(of, _timed),
        ),
        Query(
            name="q9",
            title="winning bids",
            kinds=("auction", "bid"),
            stream=_winning("winners"),
            batch=_winners,
            scala=True,
        ),
        Query(
            name="q11",
            title="user sessions",
            kinds=("bid",),
            stream=lambda of: _q11(of, _marked),
            batch=lambda of: _q11(of, _timed),
        ),
        Query(
            name="q15",
            title="bidding report",
            kinds=("bid",),
            mode="update",
            stream=lambda of: _scala("reports", _priced(of, "''")),
            batch=lambda of: _reports(of, "''"),
            key=("channel", "day"),
            scala=True,
        ),
        Query(
            name="q16",
            title="channel report",
            kinds=("bid",),
            mode="update",
            stream=lambda of: _scala("reports", _priced(of, "channel")),
            batch=lambda of: _reports(of, "channel"),
            key=("channel", "day"),
            scala=True,
        ),
        Query(
            name="q17",
            title="auction report",
            kinds=("bid",),
            mode="update",
            stream=_q17,
            batch=_q17,
            key=("auction", "day"),
        ),
        Query(
            name="q18",
            title="last bid",
            kinds=("bid",),
            mode="update",
            stream=_q18,
            batch=_q18_batch,
            key=("bidder", "auction"),
        ),
        Query(
            name="q19",
            title="ten dearest bids",
            kinds=("bid",),
            mode="update",
            stream=_q19,
            batch=_q19_batch,
            key=("auction",),
        ),
        Query(
            name="q20",
            title="bids with their auction",
            kinds=("auction", "bid"),
            stream=_q20,
            batch=_q20,
        ),
    )
}
