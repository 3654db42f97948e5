package org.apache.spark.sql.millpond.base

import java.io.{File, FileOutputStream, IOException}
import java.nio.file.Files
import java.util.concurrent.CountDownLatch

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A folder goes although somebody still writes into it, who finds out. Links go, what they lead to
  * stays. */
object LocalDirsPart extends Part {
  override val name = "local-dirs"
  private val PatienceMs = 20000L

  override def run(trial: Trial): Unit = {
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
}
