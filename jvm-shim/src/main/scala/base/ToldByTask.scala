package org.apache.spark.sql.millpond.base

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext

/** What a task told of its stateful operators, by the task's thread, until the task ends. */
private[base] final class ToldByTask[A] {
  private val byTask = new ConcurrentHashMap[Long, A]

  private def task: Long = Option(TaskContext.get()).fold(-1L)(_.taskAttemptId())

  def get: Option[A] = Option(byTask.get(task))

  /** A task may tell more than once: `fact` counts together with what it told before. */
  def tell(fact: A)(together: (A, A) => A): Unit = {
    val first = !byTask.containsKey(task)
    byTask.merge(task, fact, (before, now) => together(before, now))
    if (first) Option(TaskContext.get()).foreach { context =>
      val attempt = context.taskAttemptId()
      context.addTaskCompletionListener[Unit](_ => byTask.remove(attempt): Unit): Unit
    }
  }
}
