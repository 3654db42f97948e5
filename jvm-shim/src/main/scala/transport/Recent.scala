package org.apache.spark.sql.millpond.transport

import java.util.{LinkedHashMap, Map => JavaMap}

/** What tasks of this JVM made of a key, for those that come: of the keys that were asked for last.
  *
  * @param most how many of them */
private final class Recent[K, V](most: Int) {
  private val found = new LinkedHashMap[K, V](16, 0.75f, true) {
    override def removeEldestEntry(eldest: JavaMap.Entry[K, V]): Boolean = size > most
  }

  def apply(key: K)(make: => V): V = found.synchronized {
    found.computeIfAbsent(key, _ => make)
  }
}
