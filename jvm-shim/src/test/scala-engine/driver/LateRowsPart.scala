package org.apache.spark.sql.millpond.driver

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{
  AttributeReference, BasePredicate, GenericInternalRow, LessThan, Predicate
}
import org.apache.spark.sql.execution.streaming.operators.stateful.WatermarkSupport
import org.apache.spark.sql.millpond.testing.{Part, Trial}
import org.apache.spark.sql.types.{
  LongType, StructType, TimestampNTZType, TimestampType
}

/** Which rows come too late, by Spark's own expression. The model is Spark's predicate. */
object LateRowsPart extends Part {
  override val name = "late-rows"

  override def run(trial: Trial): Unit = {
    import trial.{chance, random}
    val time = if (chance(50)) TimestampType else TimestampNTZType
    val window = new StructType().add("start", time).add("end", time)
    val (windowed, strict, plain) = (chance(50), chance(10), chance(10))
    val kind = if (plain) LongType else if (windowed) window else time
    val late = AttributeReference("t", kind)()
    val columns = Seq.fill(random.nextInt(3))(AttributeReference("other", LongType)()) :+ late
    val watermarkMs = random.between(-5L, 5L)
    val micros = watermarkMs * 1000
    val expression = WatermarkSupport.watermarkExpression(Some(late), Some(watermarkMs)).get
    val asked = if (strict) LessThan(expression.children(0), expression.children(1))
    else expression
    trial.step(s"$asked of ${columns.size} columns")
    val ours = LateRows.predicate(asked, columns)
    val theirs = Predicate.create(asked, columns)
    trial.equal(isOwn(ours), !strict && !plain, s"whether '$asked' needs no code")
    (1 to 50).foreach { _ =>
      def someTime: Any = if (chance(15)) null else micros + random.between(-2L, 3L)
      val value =
        if (!windowed || plain) someTime
        else if (chance(15)) null
        else new GenericInternalRow(Array[Any](someTime, someTime))
      val row: InternalRow =
        new GenericInternalRow((columns.init.map(_ => 7L) :+ value).toArray[Any])
      trial.equal(ours.eval(row), theirs.eval(row), s"whether $row is late at $micros")
    }
  }

  private def isOwn(predicate: BasePredicate): Boolean =
    predicate.getClass.getName.startsWith(LateRows.getClass.getName)
}
