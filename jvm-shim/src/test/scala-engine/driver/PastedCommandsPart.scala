package org.apache.spark.sql.millpond.driver

import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** Commands that errors tell to paste mean the place of the query, whatever is in its name. The
  * model is a shell. */
object PastedCommandsPart extends Part {
  override val name = "pasted-commands"
  private val Millpond = "millpond() { printf '%s\\n' \"$@\"; }\n"
  private val letters = Seq("a", "ö", " ", "'", "\"", "$(exit 7)", "`", "\\", ";", "*", "&", "#")

  override def run(trial: Trial): Unit = {
    val root = Seq.fill(8)(letters(trial.random.nextInt(letters.size))).mkString("/data/x", "", "x")
    trial.step(root)
    trial.equal(words(StatefulPlanRule.adoptCommand(s"file:$root/state")),
      Seq("adopt", root, s"$root-millpond"), "what the shell makes of adopt")
    trial.equal(words(AskedPartitions.rescaleCommand(new Path(s"file:$root"), 8)),
      Seq("rescale", s"file:$root", "--partitions", "8"), "what the shell makes of rescale")
  }

  /** The arguments that `millpond` gets if a shell runs `command`. */
  private def words(command: String): Seq[String] = {
    val shell = new ProcessBuilder("sh").redirectErrorStream(true).start()
    // by stdin: the JVM would pass an argument in the encoding of the machine
    val in = shell.getOutputStream
    in.write((Millpond + command + "\n").getBytes(UTF_8))
    in.close()
    val said = new String(shell.getInputStream.readAllBytes, UTF_8)
    shell.waitFor(): Unit
    said.linesIterator.toSeq
  }
}
