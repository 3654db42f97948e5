package org.apache.spark.sql.millpond.agent

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration

/** Spark's settings for S3 (`fs.s3a.*`), for the agent, which reaches S3 without Hadoop. They hold
  * secret keys: they go over the link alone, and neither side logs them. */
private object S3Access {
  private val Prefix = "fs.s3a."
  private val OfBuckets = "fs.s3a.bucket."
  private val Secrets = Seq("access.key", "secret.key", "session.token", "encryption.key")
  private val Plain = Seq(
    "endpoint",
    "endpoint.region",
    "path.style.access",
    "connection.ssl.enabled",
    "requester.pays.enabled",
    "encryption.algorithm",
    "aws.credentials.provider",
    "assumed.role.arn",
    "assumed.role.session.name",
    "assumed.role.sts.endpoint"
  )

  /** Add what is set, for all buckets. */
  def add(found: ObjectNode, conf: Configuration): Unit = {
    val buckets = conf.getPropsWithPrefix(OfBuckets).keySet.asScala.toSeq.map(OfBuckets + _)
    def named(names: Seq[String]): Seq[String] =
      names.map(Prefix + _) ++ buckets.filter(key => names.exists(name => key.endsWith("." + name)))
    StorageAccess.put(found, conf, named(Plain).filter(isSet(conf, _)), named(Secrets))
  }

  /** Hadoop's own defaults say nothing. */
  private def isSet(conf: Configuration, key: String): Boolean =
    conf.get(key) != null && !Option(conf.getPropertySources(key)).exists(
      _.lastOption.contains("core-default.xml"))
}
