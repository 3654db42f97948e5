package org.apache.spark.sql.millpond.disk

import java.io.File

import scala.jdk.CollectionConverters._

import org.rocksdb.{LiveFileMetaData, Options, RocksDB, RocksDBException}

import org.apache.spark.sql.millpond.base.{MillpondError, Seams}

/** The RocksDB of a disk tier. It takes files, memory and some threads' work, also while nobody
  * needs it: single reads of a large state go elsewhere. So `rest` closes it, and the next use
  * opens it again.
  *
  * Who uses it has it counted, so nobody closes it under an iterator. Its lock is held while it is
  * opened or closed, some milliseconds, and no other lock is asked for meanwhile.
  *
  * @param options of which it changes whether an absent database is made */
private[disk] final class LocalRocks(dir: File, options: Options, readOnly: Boolean) {
  import LocalRocks._

  @volatile private var db: RocksDB = null
  @volatile private var openings = 0L
  private var closed = false
  private var users = 0
  private var passes = 0L // of maintenance, since the last use
  // of the time when it was closed: nothing changes in its folder until it is open
  private var lastFiles = Vector.empty[LiveFileMetaData]
  private var lastKeys = 0L
  open()
  release()

  def use[T](work: RocksDB => T): T = {
    val rocks = open()
    try work(rocks)
    finally release()
  }

  /** For longer than a call. Callers `release` it once. */
  def open(): RocksDB = try {
    // not under the lock: another thread may go first there
    if (db == null) Seams.at("disk.open")
    synchronized {
      if (closed) throw MillpondError.storeClosed(dir.getPath)
      if (db == null) db = opened()
      users += 1
      passes = 0L
      db
    }
  } catch {
    case e: RocksDBException =>
      throw DiskTier.failure(s"the local RocksDB $dir cannot be opened", e)
  }

  private def opened(): RocksDB = {
    // RocksDB would make an empty one
    if (openings > 0) DiskTier.checkFolder(dir)
    val made = if (readOnly) RocksDB.openReadOnly(options, dir.getPath)
    else RocksDB.open(options, dir.getPath)
    options.setCreateIfMissing(false)
    openings += 1
    made
  }

  def release(): Unit = synchronized {
    assert(db != null || closed, s"the local RocksDB $dir was closed while somebody used it")
    users -= 1
  }

  /** The live files. To ask is no use: it does not open the database. */
  def files: Vector[LiveFileMetaData] = ask(lastFiles)(filesOf)

  /** About how many keys it has; to ask is no use either. */
  def estimatedKeys: Long = ask(lastKeys)(keysOf)

  /** Bytes of the live files. */
  def bytes: Long = ask(lastFiles.iterator.map(_.size).sum)(
    _.getLongProperty("rocksdb.live-sst-files-size"))

  /** Differs after each change of the live files, and after each opening. */
  def change: (Long, Long) = ask((openings, -1L)) { db =>
    (openings, db.getLongProperty("rocksdb.current-super-version-number"))
  }

  private def ask[T](known: => T)(work: RocksDB => T): T = {
    val (rocks, answer) = synchronized {
      if (db == null) (null, known)
      else { users += 1; (db, null.asInstanceOf[T]) }
    }
    if (rocks == null) answer
    else
      try work(rocks)
      finally release()
  }

  /** A pass of maintenance: close it if nobody has used it since the one before. */
  def rest(): Unit = synchronized {
    passes += 1
    if (passes > Seams.stretch("disk.passes", 1L) && users == 0 && db != null && !isCompacting) {
      lastFiles = filesOf(db)
      lastKeys = keysOf(db)
      shut()
    }
  }

  /** To close it would break off what RocksDB does by itself. */
  private def isCompacting: Boolean = isPositive("num-running-compactions") ||
    (!options.disableAutoCompactions && isPositive("compaction-pending"))

  private def isPositive(property: String): Boolean = db.getLongProperty(s"rocksdb.$property") > 0

  private def shut(): Unit = if (db != null) { val rocks = db; db = null; rocks.close() }

  /** Close it for good; nobody uses it. */
  def close(): Unit = synchronized { closed = true; shut() }
}

private object LocalRocks {
  def filesOf(db: RocksDB): Vector[LiveFileMetaData] =
    db.getLiveFilesMetaData.asScala.toVector
  private def keysOf(db: RocksDB): Long = db.getLongProperty("rocksdb.estimate-num-keys")
}
