package org.apache.spark.sql.millpond.agent

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.millpond.base.Json

/** What Spark's Hadoop settings say of the storages that the agent reaches without Hadoop. */
private[millpond] object StorageAccess {

  /** Put it into a request, if anything was set. */
  def hand(request: ObjectNode, conf: Configuration): Unit = {
    val found = Json.obj()
    S3Access.add(found, conf)
    AzureAccess.add(found, conf)
    if (!found.isEmpty) { request.set[JsonNode]("hadoop", found); () }
  }

  /** Put settings that are set, and those secrets that are there. */
  private[agent] def put(found: ObjectNode, conf: Configuration, set: Seq[String],
      secrets: Seq[String]): Unit = {
    set.foreach(key => found.put(key, conf.get(key)))
    // a credential store of Hadoop's may have them
    secrets.foreach(key =>
      Option(conf.getPassword(key)).foreach(text => found.put(key, new String(text))))
  }
}
