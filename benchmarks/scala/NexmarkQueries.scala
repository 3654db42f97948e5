// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.sql.Timestamp

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.{DataFrame, Encoders}
import org.apache.spark.sql.streaming._

/** The queries of Nexmark that Spark's SQL cannot say of a stream, by `transformWithState`. */
object NexmarkQueries {
  /** An auction, or a bid for it: what the other kind has is zero or empty. */
  final case class Event(
      auction: Long,
      isBid: Boolean,
      atMs: Long,
      text: String,
      seller: Long,
      category: Long,
      expiresMs: Long,
      bidder: Long,
      price: Long,
      at: Timestamp
  )
  final case class Open(atMs: Long, expiresMs: Long, seller: Long, category: Long, text: String)
  final case class Bid(price: Long, atMs: Long, bidder: Long, text: String)
  final case class Winner(
      auction: Long,
      seller: Long,
      category: Long,
      expiresMs: Long,
      text: String,
      bidder: Long,
      price: Long,
      bidAtMs: Long,
      bidText: String,
      closed: Timestamp
  )
  final case class Sum(total: Long, count: Long)
  final case class Sold(expiresMs: Long, auction: Long, price: Long)
  final case class Average(key: Long, average: Double)
  final case class Priced(channel: String, day: String, auction: Long, bidder: Long, price: Long)
  final case class Counts(bids: Seq[Long], bidders: Seq[Long], auctions: Seq[Long])
  final case class Report(
      channel: String,
      day: String,
      bids: Seq[Long],
      bidders: Seq[Long],
      auctions: Seq[Long]
  )

  /** The winning bid of each auction, once it is closed. */
  def winners(events: DataFrame): DataFrame = {
    import events.sparkSession.implicits._
    events
      .as[Event]
      .groupByKey(_.auction)
      .transformWithState(new Winners, "closed", OutputMode.Append())
      .toDF()
  }

  /** The average price of the winning bids of each category so far. */
  def averages(events: DataFrame): DataFrame = {
    import events.sparkSession.implicits._
    winners(events)
      .as[Winner]
      .groupByKey(_.category)
      .transformWithState(new Averages, TimeMode.None(), OutputMode.Append())
      .toDF()
  }

  /** The average price of the last ten auctions that each seller closed. */
  def lastTen(events: DataFrame): DataFrame = {
    import events.sparkSession.implicits._
    winners(events)
      .as[Winner]
      .groupByKey(_.seller)
      .transformWithState(new LastTen, TimeMode.None(), OutputMode.Append())
      .toDF()
  }

  /** Bids, distinct bidders and auctions of each channel and day, in all and by level of price. */
  def reports(bids: DataFrame): DataFrame = {
    import bids.sparkSession.implicits._
    bids
      .as[Priced]
      .groupByKey(b => (b.channel, b.day))
      .transformWithState(new Reports, TimeMode.None(), OutputMode.Update())
      .toDF()
  }

  private val DearerFirst: Ordering[Bid] = Ordering.by(b => (-b.price, b.atMs, b.bidder, b.text))

  /** A bid that is earlier than its auction cannot win. So bids without an auction are dropped: the
    * files of a batch have the same event time.
    */
  private final class Winners extends StatefulProcessor[Long, Event, Winner] {
    @transient private var open: ValueState[Open] = _
    @transient private var best: ValueState[Bid] = _
    override def init(mode: OutputMode, time: TimeMode): Unit = {
      open = getHandle.getValueState("open", Encoders.product[Open], TTLConfig.NONE)
      best = getHandle.getValueState("best", Encoders.product[Bid], TTLConfig.NONE)
    }

    override def handleInputRows(
        auction: Long,
        rows: Iterator[Event],
        times: TimerValues
    ): Iterator[Winner] = {
      val bids = ArrayBuffer.empty[Bid]
      var known = Option.empty[Open]
      rows.foreach { row =>
        if (row.isBid) bids += Bid(row.price, row.atMs, row.bidder, row.text)
        else {
          val fresh = Open(row.atMs, row.expiresMs, row.seller, row.category, row.text)
          open.update(fresh)
          getHandle.registerTimer(row.expiresMs)
          known = Some(fresh)
        }
      }
      known.orElse(Option(open.get())).foreach { auction =>
        val valid = bids.iterator.filter(b => b.atMs >= auction.atMs && b.atMs <= auction.expiresMs)
        val before = Option(best.get())
        val now = (valid ++ before.iterator).minOption(DearerFirst)
        if (now != before) now.foreach(best.update)
      }
      Iterator.empty
    }

    override def handleExpiredTimer(
        auction: Long,
        times: TimerValues,
        timer: ExpiredTimerInfo
    ): Iterator[Winner] = {
      val (of, bid) = (open.get(), Option(best.get()))
      open.clear()
      best.clear()
      bid.iterator.map { b =>
        val closed = new Timestamp(of.expiresMs + 1) // the watermark is at least this late
        Winner(auction, of.seller, of.category, of.expiresMs, of.text, b.bidder, b.price, b.atMs,
          b.text, closed)
      }
    }
  }

  private final class Averages extends StatefulProcessor[Long, Winner, Average] {
    @transient private var sum: ValueState[Sum] = _
    override def init(mode: OutputMode, time: TimeMode): Unit =
      sum = getHandle.getValueState("sum", Encoders.product[Sum], TTLConfig.NONE)
    override def handleInputRows(
        key: Long,
        rows: Iterator[Winner],
        times: TimerValues
    ): Iterator[Average] = {
      val begin = Option(sum.get()).getOrElse(Sum(0, 0))
      val now = rows.foldLeft(begin)((s, row) => Sum(s.total + row.price, s.count + 1))
      sum.update(now)
      Iterator(Average(key, now.total.toDouble / now.count))
    }
  }

  private final class LastTen extends StatefulProcessor[Long, Winner, Average] {
    @transient private var last: ValueState[Seq[Sold]] = _
    override def init(mode: OutputMode, time: TimeMode): Unit =
      last = getHandle.getValueState("last", SoldEncoder, TTLConfig.NONE)
    override def handleInputRows(
        key: Long,
        rows: Iterator[Winner],
        times: TimerValues
    ): Iterator[Average] = {
      val fresh = rows.map(row => Sold(row.expiresMs, row.auction, row.price)).toSeq
      val all = Option(last.get()).getOrElse(Nil) ++ fresh
      val now = all.sortBy(sold => (-sold.expiresMs, -sold.auction)).take(10)
      last.update(now)
      Iterator(Average(key, now.map(_.price).sum.toDouble / now.size))
    }
  }

  private lazy val SoldEncoder =
    org.apache.spark.sql.catalyst.encoders.ExpressionEncoder[Seq[Sold]]()

  private final class Reports extends StatefulProcessor[(String, String), Priced, Report] {
    @transient private var counts: ValueState[Counts] = _
    @transient private var bidders: MapState[Long, Int] = _
    @transient private var auctions: MapState[Long, Int] = _
    override def init(mode: OutputMode, time: TimeMode): Unit = {
      counts = getHandle.getValueState("counts", Encoders.product[Counts], TTLConfig.NONE)
      bidders = map("bidders")
      auctions = map("auctions")
    }
    private def map(name: String): MapState[Long, Int] =
      getHandle.getMapState(name, Encoders.scalaLong, Encoders.scalaInt, TTLConfig.NONE)

    override def handleInputRows(
        key: (String, String),
        rows: Iterator[Priced],
        times: TimerValues
    ): Iterator[Report] = {
      val before = Option(counts.get())
      def begin(of: Counts => Seq[Long]): Array[Long] =
        before.fold(new Array[Long](4))(of(_).toArray)
      val (bids, people, items) = (begin(_.bids), begin(_.bidders), begin(_.auctions))
      rows.foreach { row =>
        val level = if (row.price < 10000) 1 else if (row.price < 1000000) 2 else 3
        bids(0) += 1
        bids(level) += 1
        note(bidders, row.bidder, level, people)
        note(auctions, row.auction, level, items)
      }
      counts.update(Counts(bids.toSeq, people.toSeq, items.toSeq))
      Iterator(Report(key._1, key._2, bids.toSeq, people.toSeq, items.toSeq))
    }

    /** Count an id once in all, and once for each level of price. */
    private def note(seen: MapState[Long, Int], id: Long, level: Int, sums: Array[Long]): Unit = {
      val before = if (seen.containsKey(id)) seen.getValue(id) else 0
      if ((before & (1 << level)) == 0) {
        if (before == 0) sums(0) += 1
        sums(level) += 1
        seen.updateValue(id, before | (1 << level))
      }
    }
  }
}
