package org.apache.spark.sql.millpond.agent

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.security.alias.CredentialProviderFactory

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

  /** Add what is set, for all accounts: `millpond/storage.json` may name a place that no option
    * names, and only the agent reads it. */
  def add(found: ObjectNode, conf: Configuration): Unit = {
    val set = conf.getPropsWithPrefix(Prefix).keySet.asScala.map(Prefix + _)
    // Hadoop's credential stores may have a secret of an account of which the settings say nothing.
    val stored = CredentialProviderFactory.getProviders(conf).asScala.flatMap(_.getAliases.asScala)
    StorageAccess.put(found, conf, named(set, Plain), named(set ++ stored, Secrets))
  }

  private def named(keys: Iterable[String], names: Seq[String]): Seq[String] =
    keys.filter(key =>
      names.map(Prefix + _).exists(name => key == name || key.startsWith(s"$name."))).toSeq
}
