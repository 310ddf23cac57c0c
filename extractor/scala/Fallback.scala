package org.apache.spark.sql.godwit

import java.lang.ref.{Cleaner, WeakReference}
import java.util.concurrent.ConcurrentHashMap

import scala.collection.mutable
import scala.concurrent.duration.Duration
import scala.util.control.NonFatal

import org.apache.spark._
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.rdd.{DeterministicLevel, RDD}
import org.apache.spark.rpc.{RpcCallContext, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.scheduler.MapStatus
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{DynamicPruningExpression, Literal}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.exchange.{Exchange, ShuffleExchangeExec}
import org.apache.spark.util.{RpcUtils, SerializableConfiguration, ThreadUtils}

/**
 * A stored block can be gone or corrupt when the query is half way through. The rows must still come, and
 * Spark's own remedy for a lost block is to run the parent stage again. A stored exchange has none, so:
 *
 *  1. the task reports the loss to the driver and fails with a fetch failure on the fragment's *pad*, a shuffle
 *     of no rows on which whoever reads the fragment depends;
 *  2. the driver plans the replaced exchange and runs it as a job of its own, which comes first in Spark's queue;
 *  3. Spark runs the pad's one task again, again and again until the driver has finished that job, and then the
 *     failed tasks, which now find the recomputed shuffle.
 *
 * A replaced exchange may itself read stored ones. Each fragment has a pad of its own, so that its recomputation
 * waits for what lies beneath it and never for itself.
 *
 * Where rows are not placed by their values, stored and recomputed partitions must not be mixed. Such a fragment
 * is checked as a whole before its first row is read; if a block is lost after that, its pad is indeterminate in
 * Spark's words: Spark runs all tasks of the failed stage again, or gives up where results have left already.
 */
object Fallback {
  case class Lost(fragment: Fragment, reason: String)
  case class Pending(fingerprint: String)
  case class MapperCount(shuffleId: Int)

  private val Endpoint = "godwit-fallback"
  private val watched = mutable.ArrayBuffer[(WeakReference[StoredRDD], WeakReference[StoredShuffleExec])]()
  private val running = ConcurrentHashMap.newKeySet[String]
  private val pads = new ConcurrentHashMap[(String, Boolean), ShuffleDependency[Int, InternalRow, InternalRow]]
  private val turns = new ConcurrentHashMap[String, AnyRef]
  private val recomputed = new ConcurrentHashMap[String, ShuffleExchangeExec]
  private val hopeless = new ConcurrentHashMap[String, String]
  private val checked = new ConcurrentHashMap[String, Check]
  private val cleaner = Cleaner.create()

  // ---- driver

  /** Another state was loaded: what is known of the old one is no part of it. */
  def forget(): Unit = { recomputed.clear(); hopeless.clear(); checked.clear() }

  /** Once for each context of the program: the shuffles of a stopped one are gone. */
  def start(env: RpcEnv): Unit = {
    forget()
    pads.clear()
    running.clear()
    watched.synchronized(watched.clear())
    env.setupEndpoint(Endpoint, new ThreadSafeRpcEndpoint {
      override val rpcEnv: RpcEnv = env
      override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
        case Lost(fragment, reason) => context.reply(lost(fragment, reason))
        case Pending(fingerprint) => context.reply(running.contains(fingerprint))
        case MapperCount(id) => context.reply(tracker.shuffleStatuses(id).mapStatuses.length)
      }
    })
  }

  def watch(rdd: StoredRDD, exec: StoredShuffleExec): StoredRDD = watched.synchronized {
    watched.filterInPlace { case (r, e) => r.get != null && e.get != null }
    watched += ((new WeakReference(rdd), new WeakReference(exec)))
    rdd.standsFor = exec
    Option(recomputed.get(exec.fragment.fingerprint)).foreach(e => rdd.fallBackTo(e.shuffleDependency))
    rdd
  }

  /** Frees the entries of a stored exchange once no plan refers to it: by then another context may count shuffles anew. */
  def forgetWith(exec: StoredShuffleExec, shuffleId: Int): Unit = {
    val ofThisContext = tracker
    cleaner.register(exec, () => ofThisContext.unregisterShuffle(shuffleId))
  }

  def tell(fragment: Fragment, reason: String): Unit = if (Fragments.lost(fragment, reason)) {
    System.err.println(s"godwit: the stored rows of ${fragment.label} are lost ($reason); they are computed again from source")
  }

  /** Whether the stored rows are those that a run would give now; told if they are not. */
  def holds(fragment: Fragment, replaced: Exchange, session: SparkSession): Boolean = {
    val why = if (Substitute.isRevoked(replaced)) Some("the query computes anew what it was made of")
    else if (Fingerprint.settingsHold(replaced, session)) None
    else Some("settings have changed since the query was planned")
    why.foreach(reason => System.err.println(s"godwit: $reason; ${fragment.label} is computed again from source"))
    why.isEmpty
  }

  /** Why it cannot be computed again, if that is known by now. */
  private def lost(fragment: Fragment, reason: String): Option[String] = {
    val print = fragment.fingerprint
    if (!hopeless.containsKey(print) && running.add(print)) {
      tell(fragment, reason)
      Seq(true, false).flatMap(level => Option(pads.get((print, level)))).foreach(p => tracker.unregisterAllMapAndMergeOutput(p.shuffleId))
      val thread = new Thread(() => try { lostAsWell(); recompute(fragment) } catch {
        case r: Refused => hopeless.put(print, r.getMessage)
        case NonFatal(e) => hopeless.put(print, s"the stored rows of ${fragment.label} are lost, and could not be computed again: $e")
      } finally running.remove(print), s"godwit-recompute-${print.take(8)}")
      thread.setDaemon(true)
      thread.start()
    }
    Option(hopeless.get(print))
  }

  /** Spark runs a stage only four times: whatever else is gone should be known before the second. */
  private def lostAsWell(): Unit = readers(_ => true).map(_._2).distinctBy(_.fragment.fingerprint).foreach { exec =>
    val fragment = exec.fragment
    val inUse = Fragments.get(fragment.fingerprint).exists(_.folder == fragment.folder) && !recomputed.containsKey(fragment.fingerprint)
    if (inUse) {
      BlockReader.missing(fragment, exec.session.sparkContext.hadoopConfiguration).foreach(reason => lost(fragment.slim, reason))
    }
  }

  private def readers(wanted: String => Boolean): Seq[(StoredRDD, StoredShuffleExec)] = watched.synchronized(watched.toSeq).flatMap { case (r, e) =>
    for (rdd <- Option(r.get); exec <- Option(e.get) if wanted(exec.fragment.fingerprint)) yield (rdd, exec)
  }

  /** Rows of two editions must not meet in one query, and what has been read cannot be read otherwise any more. */
  def refuseTwoEditions(fragment: Fragment): Unit = Fragments.inTheWay(fragment).headOption.foreach { other =>
    throw new Refused(s"the stored rows of ${fragment.label} are lost, and those of ${other.label} were made of the same values, which " +
      "another run gives otherwise: run the program again, and both are computed anew")
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

  private def recompute(fragment: Fragment): Unit = turns.computeIfAbsent(fragment.fingerprint, _ => new Object).synchronized {
    readers(_ == fragment.fingerprint).headOption.filterNot(_ => recomputed.containsKey(fragment.fingerprint)).foreach { case (_, exec) =>
      refuseTwoEditions(fragment)
      val session = exec.session
      // In a thread outside of the query, whose settings tasks look up in their job's properties.
      Fingerprint.told(exec.replaced).foreach { case (key, value) => session.sparkContext.setLocalProperty(key, value) }
      Precedence.first(session.sparkContext, kills = false)(session.withActive(SQLExecution.withSQLConfPropagated(session) {
        val exchange = executable(session, exec.replaced).asInstanceOf[ShuffleExchangeExec]
        ThreadUtils.awaitResult(exchange.submitShuffleJob(), Duration.Inf)
        recomputed.put(fragment.fingerprint, exchange)
      }))
    }
    Option(recomputed.get(fragment.fingerprint)).foreach(e => readers(_ == fragment.fingerprint).foreach(_._1.fallBackTo(e.shuffleDependency)))
  }

  /** A plan from before AQE made stages of it, ready to run by itself. Dynamic pruning only saves reading: it is left out. */
  def executable(session: SparkSession, plan: SparkPlan): SparkPlan = {
    SourceFiles.check(plan)
    val unpruned = plan.transformAllExpressions { case _: DynamicPruningExpression => Literal.TrueLiteral }
    CollapseCodegenStages()(ApplyColumnarRulesAndInsertTransitions(session.sessionState.columnarRules, outputsColumnar = false)(unpruned))
  }

  private def tracker = SparkEnv.get.mapOutputTracker.asInstanceOf[MapOutputTrackerMaster]

  def pad(sc: SparkContext, fingerprint: String, determinate: Boolean): ShuffleDependency[Int, InternalRow, InternalRow] =
    pads.computeIfAbsent((fingerprint, determinate), _ => {
      val dependency = new ShuffleDependency[Int, InternalRow, InternalRow](new PadRDD(sc, fingerprint, determinate), new ConstantPartitioner, new UnsafeRowSerializer(0))
      tracker.registerShuffle(dependency.shuffleId, 1, 1)
      tracker.registerMapOutput(dependency.shuffleId, 0, MapStatus(StoredShuffleExec.nowhere, Array(0L), 0))
      dependency
    })

  // ---- executors

  private def driver = RpcUtils.makeDriverRef(Endpoint, SparkEnv.get.conf, SparkEnv.get.rpcEnv)
  def report(fragment: Fragment, reason: String): Option[String] = driver.askSync[Option[String]](Lost(fragment, reason))
  def pending(fingerprint: String): Boolean = driver.askSync[Boolean](Pending(fingerprint))
  def mappers(dependency: ShuffleDependency[_, _, _]): Int = driver.askSync[Int](MapperCount(dependency.shuffleId))
}

class ConstantPartitioner extends Partitioner {
  override def numPartitions: Int = 1
  override def getPartition(key: Any): Int = 0
}

/**
 * No rows; its one task succeeds once its fragment's recomputation is done. Until then it gives its core back after a
 * moment, as a task that was killed: Spark runs such a one again, and counts no failure.
 */
class PadRDD(sc: SparkContext, fingerprint: String, determinate: Boolean) extends RDD[Product2[Int, InternalRow]](sc, Nil) {
  override protected def getPartitions: Array[Partition] = Array(new Partition { override val index: Int = 0 })
  override protected def getOutputDeterministicLevel: DeterministicLevel.Value =
    if (determinate) DeterministicLevel.DETERMINATE else DeterministicLevel.INDETERMINATE
  override def compute(split: Partition, context: TaskContext): Iterator[Product2[Int, InternalRow]] = {
    if (Fallback.pending(fingerprint)) {
      Thread.sleep(PadRDD.HoldMs)
      if (Fallback.pending(fingerprint)) throw new TaskKilledException("the stored rows are still being computed again")
    }
    Iterator.empty
  }
}

private object PadRDD {
  val HoldMs = 50L
}
