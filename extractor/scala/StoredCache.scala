package org.apache.spark.sql.godwit

import java.io.IOException

import org.apache.spark._
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.catalyst.plans.physical.{Partitioning, UnknownPartitioning}
import org.apache.spark.sql.execution.{LeafExecNode, SparkPlan}
import org.apache.spark.util.SerializableConfiguration

/**
 * What a cached table is built from when its rows are in the store: they are read into memory once, and the plan
 * that made them is not run. Its partitions and their order are those of the first run, about which nothing is
 * promised: the first run may have planned otherwise.
 *
 * Stored and recomputed partitions must not be mixed, so the fragment is read as a whole before its first row is
 * used. If a block is lost after that, the query fails rather than give a wrong row.
 */
case class StoredCacheExec(fragment: Fragment, output: Seq[Attribute])(@transient val replaced: SparkPlan) extends LeafExecNode with Stored {

  override def nodeName: String = "StoredCache"
  override def stringArgs: Iterator[Any] = Iterator(fragment.fingerprint.take(8))
  override protected def otherCopyArgs: Seq[AnyRef] = Seq(replaced)
  override def doCanonicalize(): SparkPlan = replaced.canonicalized
  override def outputPartitioning: Partitioning = UnknownPartitioning(fragment.partitions)

  override protected def doExecute(): RDD[InternalRow] = {
    val conf = sparkContext.broadcast(new SerializableConfiguration(sparkContext.hadoopConfiguration))
    Fallback.problem(sparkContext, fragment.slim, conf).fold[RDD[InternalRow]](new StoredCacheRDD(sparkContext, fragment.slim, conf)) { reason =>
      Fallback.tell(fragment, reason)
      Fallback.refuseTwoEditions(fragment)
      SourceFiles.check(replaced)
      replaced.execute()
    }
  }
}

private class StoredCacheRDD(sc: SparkContext, fragment: Fragment, hadoop: Broadcast[SerializableConfiguration])
    extends RDD[InternalRow](sc, Nil) {

  override protected def getPartitions: Array[Partition] =
    (0 until fragment.partitions).map(i => new Partition { override val index: Int = i }: Partition).toArray

  override def compute(split: Partition, context: TaskContext): Iterator[InternalRow] = {
    val reader = new BlockReader(fragment, hadoop.value.value)
    context.addTaskCompletionListener[Unit](_ => reader.close())
    StoredRDD.guarded(StoredRDD.rows(fragment, reader, split.index, 0, Int.MaxValue), context) { e =>
      Fallback.report(fragment, e.toString)
      throw e
    }
  }
}
