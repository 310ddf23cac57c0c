package org.apache.spark.sql.godwit

import java.util.concurrent.Semaphore

import scala.concurrent.{Future, Promise}
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark._
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.catalyst.plans.QueryPlan
import org.apache.spark.sql.catalyst.plans.logical.Statistics
import org.apache.spark.sql.catalyst.plans.physical._
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.exchange._
import org.apache.spark.sql.execution.joins.Relations
import org.apache.spark.storage.BlockManagerId
import org.apache.spark.util.SerializableConfiguration

/** A node of the plan whose rows are in the store, and what it stands for. */
trait Stored { this: SparkPlan =>
  def fragment: Fragment
  def replaced: SparkPlan
}

/** An exchange must have a child. This one carries the columns and the logical link, and is never executed. */
case class StoredLeafExec(fingerprint: String, output: Seq[Attribute]) extends LeafExecNode {
  override protected def doExecute(): RDD[InternalRow] = throw SparkException.internalError(s"stored exchange $fingerprint was executed")
  override def doCanonicalize(): SparkPlan = copy(output = output.map(QueryPlan.normalizeExpressions(_, output)))
}

/**
 * A shuffle whose rows are in the store: for AQE a stage that is materialized from the start, with the
 * statistics of the first run, so that reuse, coalescing, skew splits and local reads go on as usual. Its
 * canonical form is that of the exchange it replaces: whatever equals the one equals the other.
 */
case class StoredShuffleExec(fragment: Fragment, override val outputPartitioning: Partitioning, shuffleOrigin: ShuffleOrigin,
    advisoryPartitionSize: Option[Long], child: SparkPlan)(@transient val replaced: ShuffleExchangeExec) extends ShuffleExchangeLike with Stored {

  override def nodeName: String = "StoredExchange"
  override def stringArgs: Iterator[Any] = Iterator(fragment.fingerprint.take(8), outputPartitioning)
  override protected def otherCopyArgs: Seq[AnyRef] = Seq(replaced)
  override def doCanonicalize(): SparkPlan = replaced.canonicalized
  override def numMappers: Int = instead.fold(fragment.mappers)(_.numMappers)
  override def numPartitions: Int = fragment.partitions
  override def runtimeStatistics: Statistics = instead.fold(Statistics(fragment.dataSize, fragment.rows.map(BigInt(_))))(_.runtimeStatistics)

  /** What runs after all, where the settings are not those of the plan any more when it is run. */
  @transient @volatile private var instead: Option[ShuffleExchangeExec] = None

  /** AQE looks the sizes of blocks up under this id; nothing is ever fetched by it. */
  @transient override lazy val shuffleId: Int = instead.map(_.shuffleId).getOrElse {
    val id = sparkContext.newShuffleId()
    if (fragment.mappers > 0) {
      BlockSizes.register(id, fragment, StoredShuffleExec.nowhere)
      sparkContext.cleaner.foreach(_ => Fallback.forgetWith(this, id))
    }
    id
  }

  @transient override protected lazy val mapOutputStatisticsFuture: Future[MapOutputStatistics] = {
    if (!Fallback.holds(fragment, replaced, session)) instead = Some(Fallback.executable(session, replaced).asInstanceOf[ShuffleExchangeExec])
    instead.map(_.submitShuffleJob()).getOrElse(
      Future.successful(if (fragment.mappers == 0) null else new MapOutputStatistics(shuffleId, fragment.bytesByPartition.toArray)))
  }

  override def getShuffleRDD(specs: Array[ShufflePartitionSpec]): RDD[InternalRow] =
    instead.fold(storedRows(specs))(_.getShuffleRDD(specs).asInstanceOf[RDD[InternalRow]])

  private def storedRows(specs: Array[ShufflePartitionSpec]): RDD[InternalRow] = {
    val byValue = StoredShuffleExec.placedByValue(outputPartitioning) && specs.forall(_.isInstanceOf[CoalescedPartitionSpec]) &&
      Fingerprint.repeatable(replaced)
    val conf = sparkContext.broadcast(new SerializableConfiguration(sparkContext.hadoopConfiguration))
    val rdd = Fallback.watch(new StoredRDD(sparkContext, fragment.slim, specs, byValue, Fallback.pad(sparkContext, fragment.fingerprint, byValue), conf), this)
    if (!byValue) Fallback.check(sparkContext, fragment.slim, conf)
    rdd
  }

  override protected def doExecute(): RDD[InternalRow] =
    getShuffleRDD(Array.tabulate[ShufflePartitionSpec](numPartitions)(i => CoalescedPartitionSpec(i, i + 1)))

  override protected def withNewChildInternal(newChild: SparkPlan): StoredShuffleExec = copy(child = newChild)(replaced)
}

object StoredShuffleExec {
  /** A location that no executor has, so that no lost executor takes these entries with it. */
  val nowhere: BlockManagerId = BlockManagerId("godwit-store", "godwit-store", 1)

  /**
   * Whether a row's partition follows from its values alone. Then a partition recomputed elsewhere holds the
   * rows of the stored one, and the two may be mixed. Floating-point keys may differ in their last bits.
   */
  private def placedByValue(partitioning: Partitioning): Boolean = partitioning match {
    case SinglePartition => true
    case h: HashPartitioning => !h.expressions.exists(e => Ties.unequal(e.dataType))
    case _ => false
  }
}

/** A broadcast that is in the store. It is read by the driver, which falls back by itself. */
case class StoredBroadcastExec(fragment: Fragment, mode: BroadcastMode, child: SparkPlan)(@transient val replaced: BroadcastExchangeExec)
    extends BroadcastExchangeLike with Stored {

  override def nodeName: String = "StoredBroadcast"
  override def stringArgs: Iterator[Any] = Iterator(fragment.fingerprint.take(8))
  override protected def otherCopyArgs: Seq[AnyRef] = Seq(replaced)
  override def doCanonicalize(): SparkPlan = replaced.canonicalized
  override def outputPartitioning: Partitioning = BroadcastPartitioning(mode)
  override def runtimeStatistics: Statistics = Statistics(fragment.dataSize, fragment.rows.map(BigInt(_)))

  @transient private lazy val promise = Promise[Broadcast[Any]]()

  @transient override lazy val relationFuture: java.util.concurrent.Future[Broadcast[Any]] =
    SQLExecution.withThreadLocalCaptured[Broadcast[Any]](session, BroadcastThreads.context) {
      try {
        val relation = read()
        val broadcast = sparkContext.broadcastInternal(relation, serializedOnly = true).asInstanceOf[Broadcast[Any]]
        promise.trySuccess(broadcast)
        broadcast
      } catch { case e: Throwable => promise.tryFailure(e); throw e }
    }

  private def read(): Any =
    if (!Fallback.holds(fragment, replaced, session)) computed()
    else try StoredBroadcastExec.read(fragment, sparkContext.hadoopConfiguration) catch {
      case NonFatal(e) =>
        Fallback.tell(fragment, e.toString)
        Fallback.refuseTwoEditions(fragment)
        computed()
    }

  private def computed(): Any = {
    val rows = Fallback.executable(session, replaced.child).executeCollect().asInstanceOf[Array[InternalRow]]
    mode.transform(rows.iterator, Some(rows.length.toLong))
  }

  @transient override protected lazy val completionFuture: Future[Broadcast[Any]] = { relationFuture; promise.future }
  override protected def doPrepare(): Unit = relationFuture
  override protected def doExecute(): RDD[InternalRow] = throw SparkException.internalError("a broadcast has no rows to iterate")
  override protected[sql] def doExecuteBroadcast[T](): Broadcast[T] = relationFuture.get().asInstanceOf[Broadcast[T]]
  override protected def withNewChildInternal(newChild: SparkPlan): StoredBroadcastExec = copy(child = newChild)(replaced)
}

object StoredBroadcastExec {
  /** While an index is read it takes twice its memory, in pages of 64 MB, and a query may have dozens: in order, two at a time. */
  private val turns = new Semaphore(2, true)

  private def read(fragment: Fragment, hadoop: Configuration): Any = {
    turns.acquire()
    val reader = new BlockReader(fragment, hadoop)
    try {
      val verified = reader.open(0, 0, Int.MaxValue).getOrElse(throw new BlockLost("an empty broadcast file"))
      Relations.read(StoredRDD.decompressed(fragment, verified), fragment.fields)
    } finally { reader.close(); turns.release() }
  }
}
