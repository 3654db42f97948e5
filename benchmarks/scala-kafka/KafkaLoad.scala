// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.time.Duration
import java.util.Properties

import scala.jdk.CollectionConverters._

import org.apache.kafka.clients.admin.{Admin, NewTopic}
import org.apache.kafka.clients.consumer.KafkaConsumer
import org.apache.kafka.clients.producer.{KafkaProducer, ProducerRecord}
import org.apache.kafka.common.TopicPartition
import org.apache.kafka.common.serialization.{StringDeserializer, StringSerializer}

/** Sends the records of a plan to Kafka when they are due, and takes the results' times.
  *
  * A record's value is the time at which it was due. The time of a result is that at which the
  * broker appended it to its topic, in whole milliseconds. The arguments are the plan's text and
  * the broker's address. It sends the first batch's records and prints `ready`. It goes on when it
  * reads a line, and prints its result as JSON.
  */
object KafkaLoad {
  private val In = "in"
  private val Out = "out"
  private val DeadlineMs = 120000L

  def main(args: Array[String]): Unit = {
    val plan = Plan.of(args(0))
    val servers = args(1)
    createTopics(plan, servers)
    fill(plan, servers)(from = _ => 0L, to = plan.first)
    println("ready")
    if (scala.io.StdIn.readLine() == null) return
    val taker = new Thread(() => take(plan, servers))
    taker.setDaemon(true)
    taker.start()
    fill(plan, servers)(from = plan.first, to = plan.loaded)
    await("the results of the state's records")(Latencies.loads >= plan.keys)
    Latencies.begin(plan)
    val senders = (0 until plan.partitions).map { partition =>
      val sender = new Thread(() => send(plan, servers, partition))
      sender.start()
      sender
    }
    senders.foreach(_.join())
    await("the results of the last records")(Latencies.complete)
    println(Latencies.json())
  }

  private def await(what: String)(done: => Boolean): Unit = {
    val end = System.currentTimeMillis() + DeadlineMs
    while (!done) {
      if (System.currentTimeMillis() > end)
        throw new IllegalStateException(
          s"no $what after $DeadlineMs ms: ${Latencies.loads} loads, ${Latencies.json().take(120)}"
        )
      Thread.sleep(20)
    }
  }

  private def createTopics(plan: Plan, servers: String): Unit = {
    val admin = Admin.create(settings(servers))
    try {
      val broker = Map("message.timestamp.type" -> "LogAppendTime").asJava
      val topics = Seq(In, Out).map(new NewTopic(_, plan.partitions, 1.toShort).configs(broker))
      admin.createTopics(topics.asJava).all().get(): Unit
    } finally admin.close()
  }

  private def settings(servers: String): Properties = {
    val found = new Properties
    found.put("bootstrap.servers", servers)
    found.put("linger.ms", "0")
    found.put("auto.offset.reset", "earliest")
    found.put("enable.auto.commit", "false")
    found
  }

  private def producer(servers: String): KafkaProducer[String, String] =
    new KafkaProducer(settings(servers), new StringSerializer, new StringSerializer)

  private def record(partition: Int, key: Long, at: Long): ProducerRecord[String, String] =
    new ProducerRecord(In, partition, key.toString, at.toString)

  private def fill(plan: Plan, servers: String)(from: Int => Long, to: Int => Long): Unit = {
    val sender = producer(servers)
    try
      for (partition <- 0 until plan.partitions; n <- from(partition) until to(partition))
        sender.send(record(partition, plan.number(partition, n), 0)): Unit
    finally sender.close()
  }

  private def send(plan: Plan, servers: String, partition: Int): Unit = {
    val to = producer(servers)
    try
      plan.pace(partition, Latencies.begunUs.get)(goesOn = true) { (key, dueUs) =>
        to.send(record(partition, key, dueUs)): Unit
      }
    finally to.close()
  }

  private def take(plan: Plan, servers: String): Unit = {
    val from = new KafkaConsumer(settings(servers), new StringDeserializer, new StringDeserializer)
    from.assign((0 until plan.partitions).map(new TopicPartition(Out, _)).asJava)
    while (true)
      from.poll(Duration.ofMillis(200)).asScala.foreach { result =>
        Latencies.record(result.value.toLong, result.timestamp * 1000)
      }
  }
}
