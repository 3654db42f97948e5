package org.apache.spark.sql.millpond.base

import java.util.concurrent.{CountDownLatch, TimeUnit}

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A clock goes on whatever its work throws: without their heartbeats running queries would look
  * dead. */
object ClockPart extends Part {
  override val name = "clock"

  override def run(trial: Trial): Unit = {
    val errors = Vector(new IllegalStateException("an exception"),
      new NoClassDefFoundError("a class that is not there"), new OutOfMemoryError("no memory"))
    val before = trial.random.nextInt(3)
    val error = errors(trial.random.nextInt(errors.size))
    trial.step(s"$error after $before rounds")
    val ran = new CountDownLatch(before + 3)
    val clock = Clock.every(1L, "clock of a test") {
      ran.countDown()
      if (ran.getCount <= 3L) throw error
    }
    try trial.check(ran.await(20L, TimeUnit.SECONDS), s"it ends with $error")
    finally clock.shutdownNow(): Unit
  }
}
