package org.apache.spark.sql.millpond.base

import java.net.{InetAddress, UnknownHostException}

import org.apache.spark.util.Utils

/** This machine. */
object Host {

  /** Its name. In a container nobody may know that; then it is the address that Spark uses. */
  lazy val name: String =
    try InetAddress.getLocalHost.getHostName
    catch { case _: UnknownHostException => Utils.localHostName() }
}
