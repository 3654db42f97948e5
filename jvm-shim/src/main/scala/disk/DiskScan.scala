package org.apache.spark.sql.millpond.disk

import java.nio.ByteBuffer

import org.rocksdb.{RocksDBException, RocksIterator}

/** Walks the rows of a disk tier in key order. Callers must close it. */
private[millpond] trait DiskScan {
  def seekToFirst(): Unit
  def seek(target: Array[Byte]): Unit
  def isValid: Boolean
  def next(): Unit
  def key: Array[Byte]
  def value: Array[Byte]
  /** Copies into a direct buffer; returns the full length. */
  def keyInto(buffer: ByteBuffer): Int
  def valueInto(buffer: ByteBuffer): Int
  def close(): Unit
}

/** A RocksDB iterator. The first `close` gives it back. */
private[disk] final class RocksScan(
    it: RocksIterator, giveBack: RocksIterator => Unit) extends DiskScan {
  private var open = true
  // a row is copied out of it: an array that RocksDB's Java binding makes itself costs more
  private val buffer = new Array[Byte](RocksScan.BufferBytes)
  override def seekToFirst(): Unit = it.seekToFirst()
  override def seek(target: Array[Byte]): Unit = it.seek(target)
  override def isValid: Boolean = {
    val valid = it.isValid
    if (!valid)
      try it.status()
      catch {
        case e: RocksDBException => throw DiskTier.failure("scanning the local RocksDB failed", e)
      }
    valid
  }
  override def next(): Unit = it.next()
  override def key: Array[Byte] = {
    val length = it.key(buffer, 0, buffer.length)
    if (length <= buffer.length) java.util.Arrays.copyOf(buffer, length) else it.key
  }
  override def value: Array[Byte] = {
    val length = it.value(buffer, 0, buffer.length)
    if (length <= buffer.length) java.util.Arrays.copyOf(buffer, length) else it.value
  }
  override def keyInto(buffer: ByteBuffer): Int = it.key(buffer)
  override def valueInto(buffer: ByteBuffer): Int = it.value(buffer)
  override def close(): Unit = if (open) { open = false; giveBack(it) }
}

private object RocksScan {
  private val BufferBytes = 512 // longer rows have an array made
}
