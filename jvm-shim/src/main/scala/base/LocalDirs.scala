package org.apache.spark.sql.millpond.base

import java.io.{File, IOException}
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.{CREATE_NEW, WRITE}
import java.nio.file.attribute.PosixFilePermissions.{asFileAttribute, fromString}
import java.util
import java.util.UUID
import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.SparkEnv
import org.apache.spark.util.ShutdownHookManager

/** Where this JVM keeps its local copies: one folder under Spark's local directory. The JVM
  * locks it while it lives, so that the agent of a later JVM can tell a dead owner's folder
  * from a living one's. */
object LocalDirs {
  @volatile private var configured: Option[String] = None
  def configure(localDir: Option[String]): Unit = if (localDir.isDefined) configured = localDir

  lazy val root: File = {
    val parent = new File(configured.getOrElse(sparkLocalDir()))
    val dir = new File(parent, s"millpond-${UUID.randomUUID}")
    try {
      Files.createDirectories(parent.toPath)
      // Closed to other users from its first moment, whatever the umask, and so is all that RocksDB
      // and the agent put into it.
      Files.createDirectory(dir.toPath, asFileAttribute(fromString("rwx------")))
    } catch {
      case e: IOException =>
        throw MillpondError.of("LOCAL_DISK_FULL",
          s"the folder $dir for local state cannot be made: ${e.getMessage}", cause = e)
    }
    // It gets its name when it is locked. Else an agent that looks meanwhile takes it for a dead
    // owner's, and deletes the folder.
    val unlocked = new File(dir, "owner.lock.new").toPath
    val channel = FileChannel.open(unlocked, util.EnumSet.of(CREATE_NEW, WRITE),
      asFileAttribute(fromString("rw-------")))
    // held until the JVM ends: nobody closes the channel, and the shutdown hook refers to it
    channel.lock()
    Files.move(unlocked, new File(dir, "owner.lock").toPath, ATOMIC_MOVE)
    ShutdownHookManager.addShutdownHook(() => { delete(dir); channel.close() })
    dir
  }

  /** The configured folder itself, not this JVM's folder in it: agents of later JVMs must find
    * what a killed JVM left. */
  private def sparkLocalDir(): String = {
    val env = SparkEnv.get
    if (env == null) System.getProperty("java.io.tmpdir")
    else org.apache.spark.util.Utils.getConfiguredLocalDirs(env.conf).head
  }

  private val counter = new AtomicLong

  /** A new empty folder of one provider. */
  def forStore(id: String): File = {
    val dir = new File(root, s"$id-${counter.incrementAndGet()}")
    if (!dir.mkdirs())
      throw MillpondError.of("LOCAL_DISK_FULL", s"the folder $dir for local state cannot be made.")
    dir
  }

  def delete(file: File): Unit = {
    val children = file.listFiles
    if (children != null && !java.nio.file.Files.isSymbolicLink(file.toPath))
      children.foreach(delete)
    file.delete()
    ()
  }
}
