package org.apache.spark.sql.millpond.peer

import java.io.{FileWriter, PrintWriter}
import java.lang.instrument.{ClassFileTransformer, Instrumentation}
import java.security.ProtectionDomain

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.xbean.asm9.{ClassReader, ClassVisitor, ClassWriter, MethodVisitor, Opcodes}

/** Gives Millpond to every suite of this JVM that asks for one of Spark's own stores. The setting
  * itself is replaced when it is set, so Spark's checks, its offset log and a task see what a user
  * of Millpond sees. A suite that makes a provider by `new` gets what it made. */
object Redirect {
  private val Key = "spark.sql.streaming.stateStore.providerClass"
  private val Package = "org.apache.spark.sql.execution.streaming.state."
  private val Own = Set(Package + "RocksDBStateStoreProvider",
    Package + "HDFSBackedStateStoreProvider")
  val Millpond = "org.apache.spark.sql.millpond.MillpondStateStoreProvider"
  private val StoreId = s"L${Package.replace('.', '/')}StateStoreId;"
  private lazy val stores = new PrintWriter(new FileWriter(System.getProperty("peer.stores"), true))

  /** Called by `SQLConf.setConfWithCheck`. */
  def value(key: String, value: String): String =
    if (key == Key && Own(value) && !isBatch) Millpond else value

  /** In a batch query, `transformWithState` names RocksDB's provider itself, whatever the user
    * asked for. It stays so here, as it does for a user of Millpond. */
  private def isBatch: Boolean =
    StackWalker.getInstance.walk[Boolean](_.anyMatch { frame =>
      frame.getClassName.contains(".TransformWithState") && frame.getClassName.contains("Exec")
    })

  /** Called by Millpond's provider when a store of it begins: that says which tests it serves. */
  def opened(): Unit = synchronized { stores.println(System.currentTimeMillis); stores.flush() }

  /** Called by Millpond's provider with the store that it is to be. The tests of Spark's managers
    * of state keep stores in any folder; those of a query are in `state` of its checkpoint. */
  def place(id: StateStoreId): StateStoreId =
    if (id.checkpointRootLocation.stripSuffix("/").endsWith("/state")) id
    else id.copy(checkpointRootLocation = id.checkpointRootLocation + "/state")

  /** Called with the settings that Millpond's provider gets. Such a store is part of no query, so
    * nothing else tells how many partitions there are. */
  def partitions(settings: Configuration): Unit =
    settings.setIfUnset("spark.sql.shuffle.partitions", "5")

  def premain(arguments: String, instrumentation: Instrumentation): Unit =
    instrumentation.addTransformer(Transformer)

  private object Transformer extends ClassFileTransformer {
    override def transform(loader: ClassLoader, name: String, before: Class[_],
        domain: ProtectionDomain, bytes: Array[Byte]): Array[Byte] = name match {
      case "org/apache/spark/sql/internal/SQLConf" =>
        atEntry(bytes, "setConfWithCheck") { m =>
          m.visitVarInsn(Opcodes.ALOAD, 1)
          m.visitVarInsn(Opcodes.ALOAD, 2)
          call(m, "value", "(Ljava/lang/String;Ljava/lang/String;)Ljava/lang/String;")
          m.visitVarInsn(Opcodes.ASTORE, 2)
        }
      case "org/apache/spark/sql/millpond/provider/StoreProvider" =>
        atEntry(bytes, "init") { m =>
          call(m, "opened", "()V")
          m.visitVarInsn(Opcodes.ALOAD, 1)
          call(m, "place", s"($StoreId)$StoreId")
          m.visitVarInsn(Opcodes.ASTORE, 1)
          m.visitVarInsn(Opcodes.ALOAD, 7)
          call(m, "partitions", "(Lorg/apache/hadoop/conf/Configuration;)V")
        }
      case _ => null
    }
  }

  private def call(m: MethodVisitor, method: String, types: String): Unit =
    m.visitMethodInsn(Opcodes.INVOKESTATIC, "org/apache/spark/sql/millpond/peer/Redirect", method,
      types, false)

  private def atEntry(bytes: Array[Byte], method: String)(add: MethodVisitor => Unit)
      : Array[Byte] = {
    val reader = new ClassReader(bytes)
    val writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS)
    reader.accept(
      new ClassVisitor(Opcodes.ASM9, writer) {
        override def visitMethod(access: Int, name: String, types: String, signature: String,
            exceptions: Array[String]): MethodVisitor = {
          val next = super.visitMethod(access, name, types, signature, exceptions)
          if (name != method) next
          else new MethodVisitor(Opcodes.ASM9, next) {
            override def visitCode(): Unit = { super.visitCode(); add(this) }
          }
        }
      }, 0)
    writer.toByteArray
  }
}
