package org.apache.spark.sql.millpond.agent

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

/** Spark's settings for Azure (`fs.azure.*`), for the agent, which reaches Azure without Hadoop
  * where these are enough. Those of one account end with its host. They hold secret keys: they go
  * over the link alone, and neither side logs them. */
private object AzureAccess {
  private val Prefix = "fs.azure."
  private val Secrets = Seq(
    "account.key",
    "account.oauth2.client.secret",
    "sas.fixed.token",
    "encryption.encoded.client-provided-key"
  )
  private val Plain = Seq(
    "account.auth.type",
    "account.keyprovider",
    "account.oauth.provider.type",
    "account.oauth2.client.endpoint",
    "account.oauth2.client.id",
    "account.oauth2.msi.tenant",
    "account.oauth2.token.file",
    "abfs.endpoint",
    "always.use.https",
    "encryption.context.provider.type",
    "sas.token.provider.type"
  )

  /** Add what is set for the accounts of these places, and for all accounts. */
  def add(found: ObjectNode, conf: Configuration, places: Seq[String]): Unit = {
    val hosts = places.filter(_.startsWith("abfs")).flatMap(hostOf).distinct
    if (hosts.nonEmpty) {
      def named(names: Seq[String]): Seq[String] =
        names.flatMap(name => (Prefix + name) +: hosts.map(host => s"$Prefix$name.$host"))
      val set = conf.getPropsWithPrefix(Prefix).keySet.asScala.map(Prefix + _)
      StorageAccess.put(found, conf, named(Plain).filter(set), named(Secrets))
    }
  }

  private def hostOf(place: String): Option[String] =
    Option(new Path(place).toUri.getAuthority)
      .map(authority => authority.substring(authority.indexOf('@') + 1))
}
