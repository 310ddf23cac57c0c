package org.apache.spark.sql.execution {

  import scala.concurrent.ExecutionContextExecutorService

  import org.apache.spark.sql.execution.exchange.BroadcastExchangeExec

  /** Broadcasts are built on Spark's own threads for them, which it keeps within its package. */
  object BroadcastThreads {
    def context: ExecutionContextExecutorService = BroadcastExchangeExec.executionContext
  }

  package adaptive {
    /** A stage's result holder is what reused instances of the stage share. */
    object StageAccess {
      def identity(stage: QueryStageExec): AnyRef = stage.resultOption
    }
  }

  package columnar {

    import org.apache.spark.rdd.RDD

    object CacheAccess {
      private val field = classOf[CachedRDDBuilder].getDeclaredField("_cachedColumnBuffers")
      field.setAccessible(true)

      /**
       * The RDD of a cached table, once it is there. Its builder's own methods wait for whoever builds it, who may be
       * parked, and would build it if nobody did.
       */
      def buffers(builder: CachedRDDBuilder): Option[RDD[_]] = Option(field.get(builder).asInstanceOf[RDD[_]])
    }
  }

  package joins {

    import java.io._

    import org.apache.spark.sql.catalyst.InternalRow
    import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
    import org.apache.spark.sql.godwit.Refused
    import org.apache.spark.sql.types.DataType

    /**
     * A built broadcast as bytes: an index travels as it is, and is not built again. Spark's relations write
     * themselves by numbers and arrays alone; Java's object streams, which would run what they read, are not used.
     */
    object Relations {
      private val Rows = 0
      private val Longs = 1
      private val Keyed = 2
      private val Empty = 3
      private val AllNull = 4

      def write(relation: Any, types: Array[DataType], to: OutputStream): Unit = {
        val out = new PlainOutput(to)
        relation match {
          case rows: Array[InternalRow @unchecked] => out.writeByte(Rows); write(rows, types, out)
          case r: LongHashedRelation => out.writeByte(Longs); r.writeExternal(out)
          case r: UnsafeHashedRelation => out.writeByte(Keyed); r.writeExternal(out)
          case EmptyHashedRelation => out.writeByte(Empty)
          case HashedRelationWithAllNullKeys => out.writeByte(AllNull)
          case other => throw new Refused(s"a broadcast of ${other.getClass.getSimpleName}")
        }
        out.close()
      }

      def read(from: InputStream, fields: Int): Any = {
        val in = new PlainInput(from)
        in.readByte().toInt match {
          case Rows => rows(in, fields)
          case Longs => val r = new LongHashedRelation; r.readExternal(in); r
          case Keyed => val r = new UnsafeHashedRelation; r.readExternal(in); r
          case Empty => EmptyHashedRelation
          case AllNull => HashedRelationWithAllNullKeys
          case other => throw new IOException(s"a broadcast of an unknown kind, $other")
        }
      }

      private def write(rows: Array[InternalRow], types: Array[DataType], out: DataOutputStream): Unit = {
        val toUnsafe = UnsafeProjection.create(types)
        out.writeInt(rows.length)
        rows.foreach { r =>
          val bytes = (r match { case u: UnsafeRow => u; case other => toUnsafe(other) }).getBytes
          out.writeInt(bytes.length)
          out.write(bytes)
        }
      }

      private def rows(in: DataInputStream, fields: Int): Array[InternalRow] = Array.fill(in.readInt()) {
        val bytes = new Array[Byte](in.readInt())
        in.readFully(bytes)
        val row = new UnsafeRow(fields)
        row.pointTo(bytes, bytes.length)
        row: InternalRow
      }

      private class PlainOutput(to: OutputStream) extends DataOutputStream(to) with ObjectOutput {
        override def writeObject(value: Any): Unit = value.asInstanceOf[LongToUnsafeRowMap].writeExternal(this)
      }

      private class PlainInput(from: InputStream) extends DataInputStream(from) with ObjectInput {
        override def readObject(): AnyRef = { val map = new LongToUnsafeRowMap; map.readExternal(this); map }
      }
    }
  }
}
