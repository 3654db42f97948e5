package org.apache.spark.sql.millpond.peer

import java.io.{File, FileWriter, PrintWriter}
import java.lang.instrument.{ClassFileTransformer, Instrumentation}
import java.security.ProtectionDomain

import scala.collection.concurrent.TrieMap

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.xbean.asm9.{
  ClassReader, ClassVisitor, ClassWriter, Label, MethodVisitor, Opcodes
}
import org.apache.xbean.asm9.commons.{ClassRemapper, SimpleRemapper}

/** Gives Millpond to every suite of this JVM that asks for one of Spark's own stores. The setting
  * itself is replaced when it is set, so Spark's checks, its offset log and a task see what a user
  * of Millpond sees. A suite of [[Makers]] makes RocksDB's provider by `new`. It makes Millpond's
  * instead: its class is loaded with one name in place of the other. */
object Redirect {
  private val Key = "spark.sql.streaming.stateStore.providerClass"
  private val Package = "org.apache.spark.sql.execution.streaming.state."
  private val RocksDBs = Package + "RocksDBStateStoreProvider"
  private val Own = Set(RocksDBs, Package + "HDFSBackedStateStoreProvider")
  val Millpond = "org.apache.spark.sql.millpond.MillpondStateStoreProvider"
  private val Here = "org/apache/spark/sql/millpond/peer/Redirect"
  private val StoreId = s"L${inner(Package)}StateStoreId;"
  private val Schema = "Lorg/apache/spark/sql/types/StructType;"
  private lazy val stores = new PrintWriter(new FileWriter(System.getProperty("peer.stores"), true))
  private val collectors = TrieMap.empty[StateStoreId, TestStateSchemaProvider]
  private val renamed = new SimpleRemapper(inner(RocksDBs), inner(Millpond))

  /** The classes of tests that make RocksDB's provider themselves, and have what it makes judged. */
  private val Makers = Set("StateVariableSuiteBase", "ValueStateSuite", "ListStateSuite",
    "MapStateSuite", "TimerSuite", "StatefulProcessorHandleSuite", "RocksDBStateStoreSuite",
    "CkptIdCollectingStateStoreProviderWrapper")

  private def inner(name: String): String = name.replace('.', '/')

  /** Called by `SQLConf.setConfWithCheck`. */
  def value(key: String, value: String): String =
    if (key == Key && Own(value) && !isBatch) Millpond else value

  /** In a batch query, `transformWithState` names RocksDB's provider itself, whatever the user
    * asked for. It stays so here, as it does for a user of Millpond. */
  private def isBatch: Boolean =
    StackWalker.getInstance.walk[Boolean](_.anyMatch { frame =>
      frame.getClassName.contains(".TransformWithState") && frame.getClassName.contains("Exec")
    })

  /** Called when a store begins, of Millpond's or of Spark's: that says which tests each serves. */
  def opened(): Unit = note("millpond")
  def openedOfSpark(): Unit = note("spark")

  private def note(whose: String): Unit = synchronized {
    stores.println(s"${System.currentTimeMillis} $whose")
    stores.flush()
  }

  /** Called by Millpond's provider with the store that it is to be. The tests of Spark's managers
    * of state keep stores in any folder, and draw the numbers of operators, also below 0; those of
    * a query are in `state` of its checkpoint. */
  def place(id: StateStoreId): StateStoreId =
    if (id.checkpointRootLocation.stripSuffix("/").endsWith("/state")) id
    else id.copy(checkpointRootLocation = id.checkpointRootLocation + "/state",
      operatorId = id.operatorId & Int.MaxValue)

  /** Called with the settings that Millpond's provider gets. Such a store is part of no query, so
    * nothing else tells how many partitions there are. */
  def partitions(settings: Configuration): Unit =
    settings.setIfUnset("spark.sql.shuffle.partitions", "5")

  /** Called by Millpond's provider when a store begins, and by the store when a column family does.
    * Where Spark's tests have no files of schemas, RocksDB's provider collects them itself. */
  def schemas(id: StateStoreId, given: Option[StateSchemaProvider], key: StructType,
      value: StructType): Unit = given match {
    case Some(collector: TestStateSchemaProvider) =>
      collectors(place(id)) = collector
      collector.captureSchema(StateStore.DEFAULT_COL_FAMILY_NAME, key, value)
    case _ => ()
  }
  def schemas(store: StateStore, family: String, key: StructType, value: StructType): Unit =
    collectors.get(store.id).foreach(_.captureSchema(family, key, value))

  /** Called in place of `Object.wait` in suites: the thread that would have gone on may have ended,
    * on something that only RocksDB's store has. */
  def await(lock: Object): Unit = {
    val began = System.nanoTime
    lock.wait(20000)
    if (System.nanoTime - began > 19000000000L) throw new AssertionError("nobody went on for 20 s")
  }

  /** What suites ask of RocksDB's provider beside Spark's interface: the newest version that is
    * stored, here by the names of its files; 0 if there is none. */
  def latestVersion(provider: StateStoreProvider): Long = {
    val folder = new File(provider.stateStoreId.storeCheckpointLocation().toUri.getPath)
    val changelog = """(\d+)(_.*)?\.changelog""".r
    Option(folder.list).toSeq.flatten.collect { case changelog(version, _) =>
      version.toLong
    }.maxOption.getOrElse(0L)
  }

  def rocksDB(provider: StateStoreProvider): RocksDB =
    throw new UnsupportedOperationException("a store of Millpond's has no RocksDB of Spark's")

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
          Seq(1, 9, 2, 3).foreach(m.visitVarInsn(Opcodes.ALOAD, _))
          call(m, "schemas", s"(${StoreId}Lscala/Option;$Schema$Schema)V")
          m.visitVarInsn(Opcodes.ALOAD, 1)
          call(m, "place", s"($StoreId)$StoreId")
          m.visitVarInsn(Opcodes.ASTORE, 1)
          m.visitVarInsn(Opcodes.ALOAD, 7)
          call(m, "partitions", "(Lorg/apache/hadoop/conf/Configuration;)V")
        }
      case "org/apache/spark/sql/millpond/provider/MillpondStateStore" =>
        atEntry(bytes, "createColFamilyIfAbsent") { m =>
          (0 to 3).foreach(m.visitVarInsn(Opcodes.ALOAD, _))
          call(m, "schemas", s"(L${inner(Package)}StateStore;Ljava/lang/String;$Schema$Schema)V")
        }
      case own if Own(own.replace('/', '.')) => atEntry(bytes, "init")(call(_, "openedOfSpark", "()V"))
      // An error of linkage ends a test, not the run: some tests are those of another Spark.
      case "org/scalatest/Suite$" =>
        atEntry(bytes, "anExceptionThatShouldCauseAnAbort") { m =>
          val goOn = new Label
          m.visitVarInsn(Opcodes.ALOAD, 1)
          m.visitTypeInsn(Opcodes.INSTANCEOF, "java/lang/LinkageError")
          m.visitJumpInsn(Opcodes.IFEQ, goOn)
          m.visitInsn(Opcodes.ICONST_0)
          m.visitInsn(Opcodes.IRETURN)
          m.visitLabel(goOn)
          m.visitFrame(Opcodes.F_SAME, 0, null, 0, null)
        }
      case _ if makes(name) =>
        val writer = new ClassWriter(0)
        new ClassReader(bytes).accept(new Calls(new ClassRemapper(writer, renamed)), 0)
        writer.toByteArray
      case _ => null
    }
  }

  /** Calls this object where a suite asks RocksDB's provider for more than Spark's interface has,
    * and where it waits. */
  private class Calls(next: ClassVisitor) extends ClassVisitor(Opcodes.ASM9, next) {
    override def visitMethod(access: Int, name: String, types: String, signature: String,
        exceptions: Array[String]): MethodVisitor =
      new MethodVisitor(Opcodes.ASM9, super.visitMethod(access, name, types, signature,
          exceptions)) {
        override def visitMethodInsn(code: Int, owner: String, called: String, types: String,
            isInterface: Boolean): Unit =
          if (owner == inner(RocksDBs) && (called == "latestVersion" || called == "rocksDB"))
            call(this, called, types.replace("()", s"(L${inner(Package)}StateStoreProvider;)"))
          else if (owner == "java/lang/Object" && called == "wait" && types == "()V")
            call(this, "await", "(Ljava/lang/Object;)V")
          else super.visitMethodInsn(code, owner, called, types, isInterface)
      }
  }

  /** Whether this is a class of [[Makers]], or one within it. */
  private def makes(name: String): Boolean =
    name != null && name.startsWith(inner(Package)) &&
      Makers(name.stripPrefix(inner(Package)).takeWhile(_ != '$'))

  private def call(m: MethodVisitor, method: String, types: String): Unit =
    m.visitMethodInsn(Opcodes.INVOKESTATIC, Here, method, types, false)

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
