package org.apache.spark.sql.godwit

import java.lang.ref.{Cleaner, WeakReference}
import java.util.concurrent.ConcurrentHashMap

import scala.collection.mutable
import scala.concurrent.duration.Duration

import org.apache.spark._
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.rdd.{DeterministicLevel, RDD}
import org.apache.spark.rpc.{RpcCallContext, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.scheduler.MapStatus
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{DynamicPruningExpression, Literal}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec
import org.apache.spark.util.{RpcUtils, SerializableConfiguration, ThreadUtils}

/**
 * A stored block can be gone or corrupt when the query is half way through. The rows must still come, and
 * Spark's own remedy for a lost block is to run the parent stage again. A stored exchange has none, so:
 *
 *  1. the task reports the loss to the driver and fails with a fetch failure on the *pad*, a shuffle of no
 *     rows on which every stored exchange depends;
 *  2. the driver plans the replaced exchange and runs it as a job of its own;
 *  3. Spark runs the pad's one task again, which waits until the driver has finished that job, and then the
 *     failed tasks, which now find the recomputed shuffle.
 *
 * Where rows are not placed by their values, stored and recomputed partitions must not be mixed. Such a fragment
 * is checked as a whole before its first row is read; if a block is lost after that, its pad is indeterminate in
 * Spark's words: Spark runs all tasks of the failed stage again, or gives up where results have left already.
 */
object Fallback {
  case class Lost(fragment: Fragment, reason: String)
  case object Pending
  case class MapperCount(shuffleId: Int)

  private val Endpoint = "godwit-fallback"
  private val watched = mutable.ArrayBuffer[(WeakReference[StoredRDD], WeakReference[StoredShuffleExec])]()
  private val running = ConcurrentHashMap.newKeySet[String]
  private val pads = new ConcurrentHashMap[Boolean, ShuffleDependency[Int, InternalRow, InternalRow]]
  private val recomputed = new ConcurrentHashMap[String, ShuffleExchangeExec]
  private val checked = new ConcurrentHashMap[String, Check]
  private val cleaner = Cleaner.create()

  // ---- driver

  /** Another state was loaded: what is known of the old one is no part of it. */
  def forget(): Unit = { recomputed.clear(); checked.clear() }

  /** Once for each context of the program: the shuffles of a stopped one are gone. */
  def start(env: RpcEnv): Unit = {
    forget()
    pads.clear()
    running.clear()
    watched.synchronized(watched.clear())
    env.setupEndpoint(Endpoint, new ThreadSafeRpcEndpoint {
      override val rpcEnv: RpcEnv = env
      override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
        case Lost(fragment, reason) => lost(fragment, reason); context.reply(true)
        case Pending => context.reply(!running.isEmpty)
        case MapperCount(id) => context.reply(tracker.shuffleStatuses(id).mapStatuses.length)
      }
    })
  }

  def watch(rdd: StoredRDD, exec: StoredShuffleExec): StoredRDD = watched.synchronized {
    watched.filterInPlace { case (r, e) => r.get != null && e.get != null }
    watched += ((new WeakReference(rdd), new WeakReference(exec)))
    Option(recomputed.get(exec.fragment.fingerprint)).foreach(e => rdd.fallBackTo(e.shuffleDependency))
    rdd
  }

  /** Frees the entries of a stored exchange in the tracker once no plan refers to it. */
  def forgetWith(exec: StoredShuffleExec, shuffleId: Int): Unit = cleaner.register(exec, () => BlockSizes.unregister(shuffleId))

  def tell(fragment: Fragment, reason: String): Unit = if (Fragments.lost(fragment, reason)) {
    System.err.println(s"godwit: the stored rows of ${fragment.label} are lost ($reason); they are computed again from source")
  }

  private def lost(fragment: Fragment, reason: String): Unit = if (running.add(fragment.fingerprint)) {
    tell(fragment, reason)
    pads.values.forEach(p => tracker.unregisterAllMapAndMergeOutput(p.shuffleId))
    val thread = new Thread(() => try recompute(fragment) finally running.remove(fragment.fingerprint), s"godwit-recompute-${fragment.fingerprint.take(8)}")
    thread.setDaemon(true)
    thread.start()
  }

  /** Reads the whole fragment once; what is lost is computed again before this returns. */
  def check(sc: SparkContext, fragment: Fragment, conf: Broadcast[SerializableConfiguration]): Unit =
    checked.computeIfAbsent(fragment.fingerprint, _ => new Check(() => problem(sc, fragment, conf).foreach { reason => tell(fragment, reason); recompute(fragment) })).done

  /** Other readers wait for the first one's check; one that could not be made is made again by the next. */
  private class Check(read: () => Unit) { lazy val done: Unit = read() }

  /** What is wrong with any block of it, if something is. */
  def problem(sc: SparkContext, fragment: Fragment, conf: Broadcast[SerializableConfiguration]): Option[String] = {
    val files = sc.parallelize(fragment.files, math.max(1, fragment.files.size))
    files.mapPartitions(_.flatMap(BlockReader.problem(fragment, _, conf.value.value))).collect().headOption
  }

  private def recompute(fragment: Fragment): Unit = {
    val readers = watched.synchronized(watched.toSeq).flatMap { case (r, e) =>
      for (rdd <- Option(r.get); exec <- Option(e.get) if exec.fragment.fingerprint == fragment.fingerprint) yield (rdd, exec)
    }
    readers.headOption.filterNot(_ => recomputed.containsKey(fragment.fingerprint)).foreach { case (_, exec) =>
      val session = exec.session
      session.withActive {
        val exchange = executable(session, exec.replaced).asInstanceOf[ShuffleExchangeExec]
        ThreadUtils.awaitResult(exchange.submitShuffleJob(), Duration.Inf)
        recomputed.put(fragment.fingerprint, exchange)
      }
    }
    Option(recomputed.get(fragment.fingerprint)).foreach(e => readers.foreach(_._1.fallBackTo(e.shuffleDependency)))
  }

  /** A plan from before AQE made stages of it, ready to run by itself. Dynamic pruning only saves reading: it is left out. */
  def executable(session: SparkSession, plan: SparkPlan): SparkPlan = {
    val unpruned = plan.transformAllExpressions { case _: DynamicPruningExpression => Literal.TrueLiteral }
    CollapseCodegenStages()(ApplyColumnarRulesAndInsertTransitions(session.sessionState.columnarRules, outputsColumnar = false)(unpruned))
  }

  private def tracker = SparkEnv.get.mapOutputTracker.asInstanceOf[MapOutputTrackerMaster]

  def pad(sc: SparkContext, determinate: Boolean): ShuffleDependency[Int, InternalRow, InternalRow] =
    pads.computeIfAbsent(determinate, _ => {
      val dependency = new ShuffleDependency[Int, InternalRow, InternalRow](new PadRDD(sc, determinate), new ConstantPartitioner, new UnsafeRowSerializer(0))
      tracker.registerShuffle(dependency.shuffleId, 1, 1)
      tracker.registerMapOutput(dependency.shuffleId, 0, MapStatus(StoredShuffleExec.nowhere, Array(0L), 0))
      dependency
    })

  // ---- executors

  private def driver = RpcUtils.makeDriverRef(Endpoint, SparkEnv.get.conf, SparkEnv.get.rpcEnv)
  def report(fragment: Fragment, reason: String): Unit = driver.askSync[Boolean](Lost(fragment, reason))
  def pending: Boolean = driver.askSync[Boolean](Pending)
  def mappers(dependency: ShuffleDependency[_, _, _]): Int = driver.askSync[Int](MapperCount(dependency.shuffleId))
}

class ConstantPartitioner extends Partitioner {
  override def numPartitions: Int = 1
  override def getPartition(key: Any): Int = 0
}

/**
 * No rows; its one task ends when no recomputation is under way. While it waits it holds a core: where the two
 * pads could hold all there are, it does not wait, and Spark's retries are all the time there is.
 */
class PadRDD(sc: SparkContext, determinate: Boolean) extends RDD[Product2[Int, InternalRow]](sc, Nil) {
  private val mayWait = sc.defaultParallelism > (if (determinate) 1 else 2)

  override protected def getPartitions: Array[Partition] = Array(new Partition { override val index: Int = 0 })
  override protected def getOutputDeterministicLevel: DeterministicLevel.Value =
    if (determinate) DeterministicLevel.DETERMINATE else DeterministicLevel.INDETERMINATE
  override def compute(split: Partition, context: TaskContext): Iterator[Product2[Int, InternalRow]] = {
    while (mayWait && Fallback.pending && !context.isInterrupted()) Thread.sleep(50)
    Iterator.empty
  }
}
