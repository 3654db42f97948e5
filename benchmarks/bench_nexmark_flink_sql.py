# SPDX-License-Identifier: Apache-2.0
"""The queries of Nexmark in Flink's SQL: those of nexmark/nexmark.

They differ where the batches of `bench_nexmark_queries` ask for more. Rows that are equal in what
ranks them are ranked by the rest, averages have fractions, and no window has its end in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "person": (
        "id BIGINT",
        "name STRING",
        "email_address STRING",
        "credit_card STRING",
        "city STRING",
        "state STRING",
        "date_time BIGINT",
        "extra STRING",
    ),
    "auction": (
        "id BIGINT",
        "item_name STRING",
        "description STRING",
        "initial_bid BIGINT",
        "reserve BIGINT",
        "date_time BIGINT",
        "expires BIGINT",
        "seller BIGINT",
        "category BIGINT",
        "extra STRING",
    ),
    "bid": (
        "auction BIGINT",
        "bidder BIGINT",
        "price BIGINT",
        "channel STRING",
        "url STRING",
        "date_time BIGINT",
        "extra STRING",
    ),
}
_TIME = "`at` AS TO_TIMESTAMP_LTZ(date_time, 3)"
_MARK = "WATERMARK FOR `at` AS `at` - INTERVAL '4' SECOND"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkQuery:
    """One query.

    Attributes:
        marked: it needs watermarks.
    """

    sql: str
    marked: bool = False


def ddl(folder: Path, kinds: tuple[str, ...], *, marked: bool) -> list[str]:
    """Return the statements that make tables of the events below a folder.

    Args:
        marked: the tables have watermarks.
    """
    more = [_TIME, *([_MARK] if marked else [])]
    return [_table(kind, folder / kind, [*_COLUMNS[kind], *more]) for kind in kinds]


def held(folder: Path, kinds: tuple[str, ...], *, marked: bool) -> dict[str, Any]:
    """Return what `HeldEvents.scala` needs to hold the events below a folder.

    Args:
        marked: the tables have watermarks.
    """
    return {
        kind: {
            "columns": _COLUMNS[kind],
            "halves": [_table(kind, file, _COLUMNS[kind]) for file in _files(folder / kind)],
            "marked": marked,
        }
        for kind in kinds
    }


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _table(kind: str, path: Path, columns: Sequence[str]) -> str:
    options = f"'connector' = 'filesystem', 'path' = '{path.as_uri()}', 'format' = 'parquet'"
    return f"CREATE TEMPORARY TABLE {kind} ({', '.join(columns)}) WITH ({options})"


# Valid bids with what their auctions say.
_VALID = """
SELECT a.id, a.seller, a.category, a.expires, a.text, b.bidder, b.price,
       b.date_time AS bid_date_time, b.extra AS bid_extra
FROM (SELECT id, seller, category, date_time, expires,
             CONCAT_WS('|', item_name, description, CAST(initial_bid AS STRING),
                       CAST(reserve AS STRING), extra) AS text
      FROM auction) a
JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
"""
_WON = """
SELECT a.id, a.seller, a.category, a.expires, MAX(b.price) AS final
FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
GROUP BY a.id, a.seller, a.category, a.expires
"""
_COUNTS = """
SELECT auction, COUNT(*) AS num, window_start, window_end
FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`at`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
GROUP BY auction, window_start, window_end
"""
_DAY = "DATE_FORMAT(`at`, 'yyyy-MM-dd')"
_LEVELS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _tumbling(kind: str) -> str:
    return f"TABLE(TUMBLE(TABLE {kind}, DESCRIPTOR(`at`), INTERVAL '10' SECOND))"


def _by_level(counted: str) -> str:
    """Return a count of all rows, and one of each level of price."""
    return ", ".join([counted, *(f"{counted} FILTER (WHERE {level})" for level in _LEVELS)])


def _reports(channel: str) -> str:
    counts = map(_by_level, ("COUNT(*)", "COUNT(DISTINCT bidder)", "COUNT(DISTINCT auction)"))
    keys = "channel, `day`" if channel == "channel" else "`day`"
    return (
        f"SELECT {channel}, `day`, {', '.join(counts)}"
        f" FROM (SELECT *, {_DAY} AS `day` FROM bid) GROUP BY {keys}"
    )


def _top(rows: str, by: str, order: str, most: int) -> str:
    rank = f"ROW_NUMBER() OVER (PARTITION BY {by} ORDER BY {order}) AS place"
    return f"(SELECT *, {rank} FROM ({rows})) WHERE place <= {most}"


_LEVEL_COUNTS = ", ".join(f"COUNT(*) FILTER (WHERE {level})" for level in _LEVELS)
_DEAREST = "price DESC, date_time, bidder DESC, channel DESC, url DESC, extra DESC"
_DEAREST_BID = "price DESC, bid_date_time, bidder, bid_extra"
_LAST = "date_time DESC, price DESC, channel DESC, url DESC, extra DESC"

QUERIES: dict[str, FlinkQuery] = {
    "q3": FlinkQuery(
        sql="SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id"
        " WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
    ),
    "q4": FlinkQuery(
        sql=f"SELECT category, AVG(CAST(final AS DOUBLE)) FROM ({_WON}) GROUP BY category"
    ),
    "q5": FlinkQuery(
        sql="SELECT c.window_start, c.window_end, c.auction, c.num"
        f" FROM ({_COUNTS}) c JOIN (SELECT MAX(num) AS most, window_start, window_end"
        f" FROM ({_COUNTS}) GROUP BY window_start, window_end) m"
        " ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num >= m.most",
        marked=True,
    ),
    "q6": FlinkQuery(
        sql="SELECT seller, AVG(CAST(final AS DOUBLE)) FROM"
        f" {_top(_WON, 'seller', 'expires DESC, id DESC', 10)} GROUP BY seller"
    ),
    "q7": FlinkQuery(
        sql="SELECT b.auction, b.bidder, b.price, b.`at`, b.extra FROM bid b"
        " JOIN (SELECT MAX(price) AS most, window_time AS ends FROM"
        f" {_tumbling('bid')} GROUP BY window_start, window_end, window_time) m"
        " ON b.price = m.most AND b.`at` BETWEEN m.ends - INTERVAL '9.999' SECOND AND m.ends",
        marked=True,
    ),
    "q8": FlinkQuery(
        sql="SELECT p.id, p.name, p.window_start FROM"
        f" (SELECT id, name, window_start, window_end FROM {_tumbling('person')}"
        " GROUP BY id, name, window_start, window_end) p JOIN"
        f" (SELECT seller, window_start, window_end FROM {_tumbling('auction')}"
        " GROUP BY seller, window_start, window_end) a"
        " ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end",
        marked=True,
    ),
    "q9": FlinkQuery(
        sql="SELECT id, seller, category, expires, text, bidder, price, bid_date_time, bid_extra,"
        f" expires + 1 FROM {_top(_VALID, 'id', _DEAREST_BID, 1)}"
    ),
    "q11": FlinkQuery(
        sql="SELECT window_start, window_end, bidder, COUNT(*) FROM TABLE(SESSION(TABLE bid"
        " PARTITION BY bidder, DESCRIPTOR(`at`), INTERVAL '10' SECOND))"
        " GROUP BY bidder, window_start, window_end",
        marked=True,
    ),
    "q15": FlinkQuery(sql=_reports("''")),
    "q16": FlinkQuery(sql=_reports("channel")),
    "q17": FlinkQuery(
        sql=f"SELECT auction, `day`, COUNT(*), {_LEVEL_COUNTS}, MIN(price), MAX(price),"
        " AVG(CAST(price AS DOUBLE)), SUM(price)"
        f" FROM (SELECT *, {_DAY} AS `day` FROM bid) GROUP BY auction, `day`"
    ),
    "q18": FlinkQuery(
        sql="SELECT bidder, auction, date_time, price, channel, url, extra FROM"
        f" {_top('SELECT * FROM bid', 'bidder, auction', _LAST, 1)}"
    ),
    "q19": FlinkQuery(
        sql="SELECT auction, price, -date_time, bidder, channel, url, extra FROM"
        f" {_top('SELECT * FROM bid', 'auction', _DEAREST, 10)}"
    ),
    "q20": FlinkQuery(
        sql="SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra,"
        " a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires,"
        " a.seller, a.category, a.extra"
        " FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10"
    ),
}
