// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.util.concurrent.atomic.{AtomicIntegerArray, AtomicLong, AtomicLongArray}

/** The time since 1970 in microseconds, which never goes back. */
object WallClock {
  private val baseUs = System.currentTimeMillis() * 1000
  private val baseNs = System.nanoTime()

  def nowUs(): Long = baseUs + (System.nanoTime() - baseNs) / 1000

  /** Returns no sooner than at that time, and at most some tens of microseconds later. */
  def waitUntil(us: Long): Unit = {
    var left = us - nowUs()
    while (left > 0) {
      if (Thread.interrupted()) throw new InterruptedException
      java.util.concurrent.locks.LockSupport.parkNanos(left * 1000)
      left = us - nowUs()
    }
  }
}

/** The schedule of a run: when each record is due, whether or not anyone is ready for it.
  *
  * One process has one run. First come `keys` records as fast as they can, which fill the state. A
  * batch of its own has the first ones of them, since its commit runs cold code.
  * Then, from `begin` on, one record after the other at a fixed rate: for `warmup`, and for the
  * time that is measured.
  */
final case class Plan(
    rate: Long,
    keys: Long,
    partitions: Int,
    warmupUs: Long,
    measuredUs: Long,
    twice: Boolean
) extends Serializable {

  /** How many records of the state a partition of the source has; the first ones have one more. */
  def loaded(partition: Int): Long = (keys - partition + partitions - 1) / partitions

  /** How many of those come in the first batch. */
  def first(partition: Int): Long = loaded(partition).min(Plan.First / partitions)

  /** The number of record `n` of a partition among all of them: of those that fill the state, which
    * have it as their key, and of the paced ones.
    */
  def number(partition: Int, n: Long): Long = n * partitions + partition

  def paced: Long = rate * (warmupUs + measuredUs) / 1000000

  /** When a record is due, after the begin. */
  def dueUs(number: Long): Long = number * 1000000 / rate

  /** Gives each paced record of a partition to `emit` when it is due: its key, and that time.
    * @param goesOn is asked before each
    */
  def pace(partition: Int, begunUs: Long)(goesOn: => Boolean)(emit: (Long, Long) => Unit): Unit = {
    var n = number(partition, 0)
    while (goesOn && n < paced) {
      val us = begunUs + dueUs(n)
      WallClock.waitUntil(us)
      emit(key(n), us)
      n += partitions
    }
  }

  /** A key of the state at random, the same in each run. With `twice`, every other record has a new
    * key instead, so that the other half are duplicates.
    */
  def key(number: Long): Long =
    if (twice && number % 2 == 0) keys + number / 2
    else java.lang.Long.remainderUnsigned(mixed(number), keys)

  /** How many results are due in the measured time. */
  def expected: Long = {
    val all = paced - rate * warmupUs / 1000000
    if (twice) all / 2 else all
  }

  private def mixed(number: Long): Long = {
    val a = (number + 1) * 0x9e3779b97f4a7c15L
    val b = (a ^ (a >>> 30)) * 0xbf58476d1ce4e5b9L
    val c = (b ^ (b >>> 27)) * 0x94d049bb133111ebL
    c ^ (c >>> 31)
  }
}

object Plan {
  private val First = 1000L

  /** Reads `rate keys partitions warmup_s measured_s twice`. */
  def of(text: String): Plan = text.split(' ') match {
    case Array(rate, keys, partitions, warmup, measured, twice) =>
      Plan(
        rate.toLong,
        keys.toLong,
        partitions.toInt,
        warmup.toLong * 1000000,
        measured.toLong * 1000000,
        twice.toBoolean
      )
    case _ => throw new IllegalArgumentException(text)
  }
}

/** Latencies by the tenth of a second in which their records were due.
  *
  * A record that was due while nothing was read counts with all of its wait. Each slot has a
  * histogram with 32 buckets for each power of two, so a value is right within 3 %, and its exact
  * maximum.
  */
object Latencies {
  val SlotUs = 100000L
  private val Buckets = 32 * 34

  @volatile private var run: Option[Run] = None
  private val earlier = new AtomicLong

  private final class Run(val plan: Plan, val begunUs: Long) {
    val slots: Array[AtomicIntegerArray] =
      Array.fill((plan.measuredUs / SlotUs).toInt)(new AtomicIntegerArray(Buckets))
    val maxUs = new AtomicLongArray(slots.length)
    val count = new AtomicLong
  }

  /** Begins the schedule now, once. */
  def begin(plan: Plan): Unit = synchronized {
    if (run.isEmpty) run = Some(new Run(plan, WallClock.nowUs()))
  }

  /** When the schedule began; None: it has not yet. */
  def begunUs: Option[Long] = run.map(_.begunUs)

  /** How many results came of the records that fill the state. */
  def loads: Long = earlier.get

  /** Takes the result of a record. `dueUs` is 0 for those that fill the state. */
  def record(dueUs: Long, nowUs: Long): Unit =
    if (dueUs == 0) earlier.incrementAndGet(): Unit
    else
      run.foreach { of =>
        val slot = Math.floorDiv(dueUs - of.begunUs - of.plan.warmupUs, SlotUs)
        if (slot >= 0 && slot < of.slots.length) {
          // Kafka's times are whole milliseconds: a record may seem to come before it was due.
          val us = (nowUs - dueUs).max(0L)
          of.slots(slot.toInt).incrementAndGet(bucket(us))
          of.maxUs.accumulateAndGet(slot.toInt, us, (a, b) => a.max(b))
          of.count.incrementAndGet()
        }
      }

  /** Whether all results of the measured time have come. */
  def complete: Boolean = run.exists(of => of.count.get >= of.plan.expected)

  private def bucket(us: Long): Int = {
    val shift = (58 - java.lang.Long.numberOfLeadingZeros(us)).max(0)
    (shift * 32 + (us >>> shift).toInt).min(Buckets - 1)
  }

  /** Returns all as JSON: of each slot the pairs of bucket and count. */
  def json(): String = run match {
    case None => "null"
    case Some(of) =>
      val slots = of.slots.map { slot =>
        val filled = (0 until Buckets).filter(slot.get(_) > 0)
        filled.map(i => s"[$i,${slot.get(i)}]").mkString("[", ",", "]")
      }
      val from = (of.begunUs + of.plan.warmupUs) / 1000
      val max = of.slots.indices.map(of.maxUs.get).mkString("[", ",", "]")
      s"""{"from_ms":$from,"slot_ms":${SlotUs / 1000},"expected":${of.plan.expected},""" +
        s""""count":${of.count.get},"max_us":$max,"slots":${slots.mkString("[", ",", "]")}}"""
  }
}
