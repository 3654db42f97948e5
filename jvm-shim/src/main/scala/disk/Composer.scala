package org.apache.spark.sql.millpond.disk

import java.io.File

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.millpond.base.MillpondError
import org.apache.spark.sql.millpond.changelog.PendingChangelog
import org.apache.spark.sql.millpond.rows.{FamilyOwnership, OwnedSlots}

/** Puts the disk tier of a store together after a rescale: SSTs of the old partitions, of which
  * this store owns some slots. It clips the source with the most bytes in place. It reads the
  * others where they are, until the first flush copies their rows. */
private[millpond] object Composer {

  /** @param described `db` of the restore plan, with `sources`
    * @param made takes the tier and its folder, as soon as there is something to close */
  def compose(described: JsonNode, config: DiskConfig)(made: (DiskTier, File) => Unit): Unit = {
    val families = new FamilyOwnership(described.get("column_families"))
    val sources = described.get("sources").elements.asScala.map(s =>
      (new File(s.get("dir").asText), s.get("bytes").asLong, OwnedSlots.of(s.get("slots")))).toSeq
    val target = new File(described.get("dir").asText)
    val base = if (sources.isEmpty) None else Some(sources.maxBy(_._2))
    base.foreach { case (dir, _, _) =>
      if (!dir.renameTo(target)) throw MillpondError.internal(s"$dir cannot be renamed to $target")
    }
    if (base.isEmpty && !target.mkdirs()) throw MillpondError.internal(s"$target cannot be made")
    val disk = new DiskTier(target, config)
    made(disk, target)
    base.foreach { case (_, _, owned) => new Clip(disk, families, owned).run() }
    val others = Vector.newBuilder[TierSource]
    sources.filterNot(base.contains).foreach { case (dir, _, owned) =>
      others += new TierSource(new DiskTier(dir, config, readOnly = true), owned, families)
      disk.addSources(others.result())
    }
  }

  /** The disk tier takes over the rows of its sources.
    *
    * @param locked runs a step while no reader can use the tier */
  def settle(disk: DiskTier, workDir: => File)(
      locked: (() => Unit) => Unit): Unit = if (disk.hasSources) {
    val copies = disk.copySources(workDir)
    try locked(() => disk.replaceSources(copies))
    finally copies.foreach(_.delete()) // the tier has moved the others into its folder
  }

  /** The changelogs of the old partitions that have rows of this store, in the order in which they
    * apply to the disk tier.
    * @param described `db` of the restore plan, with `changelogs` */
  def changelogs(described: JsonNode): Seq[PendingChangelog] = {
    val families = new FamilyOwnership(described.get("column_families"))
    described.get("changelogs").elements.asScala.map { c =>
      val owned = OwnedSlots.of(c.get("slots"))
      // each has its own version; together they lead to the version that the rescale made
      PendingChangelog(described.get("version").asLong, c.get("id").asText, c.get("path").asText,
        0L, families.owns(owned))
    }.toSeq
  }
}
