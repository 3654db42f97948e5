package org.apache.spark.sql.millpond.base

import java.io.{File, FileOutputStream, IOException}
import java.nio.file.Files
import java.util.concurrent.CountDownLatch

import scala.util.Try

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A folder goes although somebody still writes into it, who finds out. Links go, what they lead to
  * stays. A JVM's own folder goes with its lock last, whatever happens meanwhile. No query gets
  * another folder than the one it names. */
object LocalDirsPart extends Part {
  override val name = "local-dirs"
  private val PatienceMs = 20000L

  override def fault(point: String): Option[Throwable] =
    if (point == "local.end") Some(new IOException("as the test wants it")) else None

  override def run(trial: Trial): Unit = {
    endRoot(trial)
    if (trial.failAt == 0) {
      deleteFolder(trial)
      nameNoFolder(trial)
    }
  }

  /** Two queries name a folder that cannot be made, before either needs it: both must fail. */
  private def nameNoFolder(trial: Trial): Unit = {
    val file = Files.createTempFile("millpond-local-dirs", "")
    try {
      val named = Seq.fill(2)(Try(LocalDirs.configure(Some(file.toString))))
      val used = named.map(_.flatMap(_ => Try(LocalDirs.root)))
      used.foreach(root => trial.check(root.isFailure, s"a query got $root"))
    } finally Files.delete(file)
  }

  private def deleteFolder(trial: Trial): Unit = {
    val parent = Files.createTempDirectory("millpond-local-dirs").toFile
    try {
      val (folder, kept) = (new File(parent, "folder"), new File(parent, "kept"))
      val inner = new File(folder, "inner")
      trial.check(inner.mkdirs() && kept.mkdir(), "there are no folders")
      new FileOutputStream(new File(kept, "file")).close()
      Files.createSymbolicLink(new File(inner, "link").toPath, kept.toPath): Unit
      val begun = new CountDownLatch(trial.random.nextInt(200))
      val writer = new Thread(() => write(inner, begun))
      writer.setDaemon(true)
      writer.start()
      begun.await()
      LocalDirs.delete(folder)
      writer.join(PatienceMs)
      trial.check(!writer.isAlive, "somebody writes on")
      LocalDirs.delete(new File(parent, "absent"))
      trial.equal(parent.list.toSeq, Seq("kept"), "what is left")
      trial.equal(kept.list.toSeq, Seq("file"), "what the link led to")
      LocalDirs.delete(new File(kept, "file"))
      trial.equal(kept.list.toSeq, Nil, "what is left of a file")
    } finally LocalDirs.delete(parent)
  }

  private def write(folder: File, begun: CountDownLatch): Unit = {
    var i = 0
    try
      while (true) {
        new FileOutputStream(new File(folder, s"file-$i")).close()
        begun.countDown()
        i += 1
      }
    catch { case _: IOException => () }
  }

  /** The JVM may die at each step. At one of them a task may still make a folder. */
  private def endRoot(trial: Trial): Unit = {
    val root = Files.createTempDirectory("millpond-local-dirs").toFile
    try {
      val lock = new File(root, "owner.lock")
      val stores = Seq.tabulate(trial.random.nextInt(6))(i => new File(root, s"store-$i"))
      trial.random.shuffle(lock +: stores).foreach { file =>
        if (file == lock) new FileOutputStream(file).close()
        else trial.check(new File(file, "db").mkdirs(), s"there is no $file")
      }
      val late = new File(root, "late")
      var untilLate = trial.random.nextInt(2 * stores.size + 2)
      trial.beside = point =>
        if (point == "local.end") {
          if (untilLate == 0) trial.check(late.mkdir(), "there is no late folder")
          untilLate -= 1
        }
      try LocalDirs.end(root)
      catch { case _: IOException => trial.check(trial.hasFailed, "nothing failed") }
      finally trial.beside = Trial.nothing
      trial.equal(root.exists, trial.hasFailed || untilLate < 0, "whether the folder is left")
      trial.equal(lock.exists, root.exists, "whether the lock is left")
    } finally LocalDirs.delete(root)
  }
}
