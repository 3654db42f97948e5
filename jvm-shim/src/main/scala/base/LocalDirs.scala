package org.apache.spark.sql.millpond.base

import java.io.{File, IOException}
import java.nio.channels.FileChannel
import java.nio.file.{FileAlreadyExistsException, Files, Path}
import java.nio.file.LinkOption.NOFOLLOW_LINKS
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.{CREATE_NEW, WRITE}
import java.nio.file.attribute.PosixFilePermissions.{asFileAttribute, fromString}
import java.util
import java.util.UUID
import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.util.{ShutdownHookManager, Utils}

/** Where this JVM keeps its local copies: one folder under Spark's local directory. The JVM
  * locks it while it lives, so that the agent of a later JVM can tell a dead owner's folder
  * from a living one's. */
object LocalDirs {
  private val lockName = "owner.lock"
  private var lock: FileChannel = null // guarded by this. Held until the JVM ends
  private var configured: Option[String] = None // guarded by this, as `root` is while it is made

  /** Say where `root` is, unless it is made. It is made at once: somebody else's failure would take
    * the setting back before it is used. */
  def configure(localDir: Option[String]): Unit = if (localDir.isDefined && runsTasks) {
    refuse(localDir, "[A-Za-z][A-Za-z0-9+.-]+:/.*", "a URI", "a folder")
    // Spark's own local directories are a list. As one path it names a folder of the root disk.
    refuse(localDir, ".*,\\s*/.*", "a list", "one folder")
    synchronized {
      configured = localDir
      root: Unit
    }
  }

  private def refuse(localDir: Option[String], pattern: String, is: String, wanted: String): Unit =
    localDir.filter(_.matches(pattern)).foreach { text =>
      throw MillpondError.of("INVALID_OPTION",
        s"the option ${Options.prefix}localDir = '$text' is $is.",
        hint = s"Give the path of $wanted on the executor's own disk, such as /mnt/disk.")
    }

  /** The driver of a cluster runs no tasks, and may lack the executors' disk. */
  private def runsTasks: Boolean = {
    val env = SparkEnv.get
    env == null || env.executorId != SparkContext.DRIVER_IDENTIFIER ||
    Utils.isLocalMaster(env.conf)
  }

  lazy val root: File = {
    // absolute: the agent has a working directory of its own
    val parent = new File(configured.getOrElse(sparkLocalDir())).getAbsoluteFile
    val dir = new File(parent, s"millpond-${UUID.randomUUID}")
    var isMade = false
    try {
      making(dir) {
        try own(dir)
        finally if (lock == null) delete(dir) // no agent would
        ShutdownHookManager.addShutdownHook(() => end(dir)): Unit
      }
      isMade = true
    } finally if (!isMade) configured = None // whoever still wants it says so again
    dir
  }

  /** Make the folder and lock it. Both may be done, and somebody may have deleted either since: an
    * agent never deletes a folder without a lock. */
  private def own(dir: File): Unit = {
    closed(dir.toPath)
    if (!new File(dir, lockName).exists) {
      if (lock != null) lock.close()
      lock = locked(dir)
    }
  }

  /** The file gets its name when it is locked. Else an agent that looks meanwhile takes the folder
    * for a dead owner's, and deletes it. */
  private def locked(dir: File): FileChannel = {
    val unlocked = new File(dir, s"$lockName.new").toPath
    val channel = FileChannel.open(unlocked, util.EnumSet.of(CREATE_NEW, WRITE),
      asFileAttribute(fromString("rw-------")))
    try {
      channel.lock()
      Files.move(unlocked, new File(dir, lockName).toPath, ATOMIC_MOVE)
      channel
    } catch { case e: IOException => channel.close(); Files.deleteIfExists(unlocked); throw e }
  }

  /** Make a folder that is closed to other users from its first moment, whatever the umask, and so
    * is all that RocksDB and the agent put into it. It may be there. */
  private def closed(dir: Path): Unit = {
    // older builds of Java 17 fail at a folder that is there by a link
    if (!Files.isDirectory(dir.getParent)) Files.createDirectories(dir.getParent): Unit
    try Files.createDirectory(dir, asFileAttribute(fromString("rwx------"))): Unit
    catch { case _: FileAlreadyExistsException if Files.isDirectory(dir) => }
  }

  private def making(dir: File)(work: => Unit): Unit =
    try work
    catch {
      case e: IOException =>
        throw MillpondError.ofLocalFile(s"the folder $dir for local state cannot be made: $e", e)
    }

  /** The configured folder itself, not this JVM's folder in it: agents of later JVMs must find
    * what a killed JVM left. */
  private def sparkLocalDir(): String = {
    val env = SparkEnv.get
    if (env == null) System.getProperty("java.io.tmpdir")
    else Utils.getConfiguredLocalDirs(env.conf).head
  }

  private val counter = new AtomicLong

  /** A new empty folder of one provider. */
  def forStore(id: String): File = {
    val dir = new File(root, s"$id-${counter.incrementAndGet()}")
    below(dir)(Files.createDirectory(_)) // not one that is there: what is in it is not known
    dir
  }

  /** Make a folder below `root`, which somebody may have deleted meanwhile, unless it is there. */
  def make(dir: File): Unit = below(dir)(Files.createDirectories(_))

  private def below(dir: File)(create: Path => Path): Unit = making(dir) {
    synchronized { // else `end` deletes the lock between the two
      own(root)
      create(dir.toPath): Unit
    }
  }

  /** Delete the root as the JVM ends. The lock goes last, and only if nothing else is left: until
    * then the agent of a later JVM deletes what this one does not, because it is killed meanwhile,
    * or because a task still writes. */
  private[base] def end(root: File): Unit = {
    val last = new File(root, lockName)
    filesIn(root).filter(_ != last).foreach { file =>
      Seams.at("local.end")
      deleteInPlace(file)
    }
    Seams.at("local.end")
    synchronized(if (filesIn(root).forall(_ == last)) deleteInPlace(root))
  }

  /** Delete a file, or a folder with all that is in it. Whoever still writes into the folder, such
    * as an agent that fetches files for nobody, finds it gone at once, and cannot keep it. */
  def delete(file: File): Unit = {
    val gone = new File(file.getParentFile, s".gone-${UUID.randomUUID}")
    deleteInPlace(if (isFolder(file) && file.renameTo(gone)) gone else file)
  }

  private def deleteInPlace(file: File): Unit = {
    if (isFolder(file)) filesIn(file).foreach(deleteInPlace)
    file.delete()
    ()
  }

  private def filesIn(folder: File): Seq[File] = Option(folder.listFiles).toSeq.flatten

  private def isFolder(file: File): Boolean = Files.isDirectory(file.toPath, NOFOLLOW_LINKS)
}
