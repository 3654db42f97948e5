// SPDX-License-Identifier: Apache-2.0
package org.apache.spark.sql.millpond.bench

import java.io.{BufferedReader, InputStreamReader}
import java.lang.{Long => JLong}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.Properties

import org.apache.flink.api.common.typeinfo.{TypeInformation, Types}
import org.apache.flink.api.java.tuple.Tuple2
import org.apache.flink.connector.base.DeliveryGuarantee
import org.apache.flink.connector.kafka.sink.{KafkaRecordSerializationSchema, KafkaSink}
import org.apache.flink.connector.kafka.source.KafkaSource
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema
import org.apache.flink.util.Collector
import org.apache.kafka.clients.consumer.ConsumerRecord
import org.apache.kafka.clients.producer.ProducerRecord

import FlinkLatency.Event

/** Kafka as the source and the sink of `FlinkLatency`, with texts as `KafkaLoad` has them. */
private object FlinkKafka {
  val EventType: TypeInformation[Event] = Types.TUPLE[Event](Types.LONG, Types.LONG)

  def source(servers: String): KafkaSource[Event] =
    KafkaSource
      .builder[Event]()
      .setBootstrapServers(servers)
      .setTopics("in")
      .setStartingOffsets(OffsetsInitializer.earliest())
      .setDeserializer(new Read)
      .build()

  /** Sends at least once, as Spark's sink does. */
  def sink(servers: String): KafkaSink[Event] = {
    val settings = new Properties
    settings.put("linger.ms", "0")
    KafkaSink
      .builder[Event]()
      .setBootstrapServers(servers)
      .setKafkaProducerConfig(settings)
      .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
      .setRecordSerializer(new Write)
      .build()
  }

  private final class Read extends KafkaRecordDeserializationSchema[Event] {
    override def deserialize(
        record: ConsumerRecord[Array[Byte], Array[Byte]],
        out: Collector[Event]
    ): Unit = out.collect(Tuple2.of(number(record.key), number(record.value)))

    private def number(text: Array[Byte]): JLong = JLong.valueOf(new String(text, UTF_8))

    override def getProducedType: TypeInformation[Event] = EventType
  }

  private final class Write extends KafkaRecordSerializationSchema[Event] {
    override def serialize(
        event: Event,
        context: KafkaRecordSerializationSchema.KafkaSinkContext,
        timestamp: JLong
    ): ProducerRecord[Array[Byte], Array[Byte]] =
      new ProducerRecord("out", text(event.f0), text(event.f1))

    private def text(number: JLong): Array[Byte] = number.toString.getBytes(UTF_8)
  }
}

/** The process that runs `KafkaLoad`.
  * @param command it starts the process
  */
private final class FlinkKafkaLoad(command: Seq[String]) {
  private val process =
    new ProcessBuilder(command: _*).redirectError(ProcessBuilder.Redirect.INHERIT).start()
  private val said = new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8))
  if (said.readLine() != "ready") throw new IllegalStateException("no records in Kafka")

  /** Lets it send all records. Returns the latencies, as JSON. */
  def result(): String = {
    process.getOutputStream.write('\n')
    process.getOutputStream.flush()
    Option(said.readLine()).getOrElse(throw new IllegalStateException("no results from Kafka"))
  }
}
