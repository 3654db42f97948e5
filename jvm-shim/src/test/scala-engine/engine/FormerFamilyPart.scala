package org.apache.spark.sql.millpond.engine

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.millpond.base.{Json, MillpondException}
import org.apache.spark.sql.millpond.testing.{Part, Trial}

/** A column family takes the name or the id of another one only after that was removed. Else two
  * attempts of a batch gave one family two ids, and its rows would be lost without a word. */
object FormerFamilyPart extends Part {
  override val name = "former-family"

  override def run(trial: Trial): Unit = {
    val id = trial.random.between(1, 100)
    for ((next, nextId) <- Seq("y" -> (id + 1), "z" -> id); isRemoved <- Seq(false, true)) {
      trial.step(s"'y' has the id $id, removed $isRemoved, then '$next' has $nextId")
      val store = new LoadedStore(isHeap = false, 1)
      import store.engine
      try engine.synchronized {
        val replay = new Replay(engine.context, engine.layout, engine.families, engine.rows,
          engine.tier, () => false)
        replay.addFamilies(listed("y", id, removed = false), 2L, onDisk = false)
        if (isRemoved) replay.addFamilies(listed("y", id, removed = true), 3L, onDisk = false)
        val refused =
          try { replay.addFamilies(listed(next, nextId, removed = false), 4L, onDisk = false); "" }
          catch { case e: MillpondException => e.kind }
        trial.equal(refused, if (isRemoved) "" else "FORMAT_DAMAGED", "the error")
        trial.equal(engine.families.get(if (isRemoved) next else "y").id,
          if (isRemoved) nextId else id, "the id of the family that is left")
      } finally store.close()
    }
  }

  private def listed(name: String, id: Int, removed: Boolean): JsonNode = {
    val list = Json.obj()
    list.putArray("column_families").addObject().put("name", name).put("id", id)
      .put("kind", "point").put("internal", false).put("multi", false).put("removed", removed)
    list
  }
}
