package org.apache.spark.sql.godwit

import java.util.IdentityHashMap

import scala.collection.mutable
import scala.util.Try

import org.json4s._
import org.json4s.JsonDSL._

import org.apache.spark.MapOutputStatistics
import org.apache.spark.sql.catalyst.plans.logical.statsEstimation.EstimationUtils
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.adaptive._
import org.apache.spark.sql.execution.command.DataWritingCommandExec
import org.apache.spark.sql.execution.columnar.{CacheAccess, InMemoryTableScanExec}
import org.apache.spark.sql.execution.datasources.v2.{V2CommandExec, V2ExistingTableWriteExec}
import org.apache.spark.sql.execution.exchange._

/** One pipeline of a live query, as `godwit.planrewrite.stagegraph` reads it; `holder` is what its rows are taken from. */
case class PipelineView(
    id: String,
    kind: String,
    state: String,
    fingerprint: Either[String, String],
    operator: String,
    inInitialPlan: Boolean = false,
    stored: Boolean = false,
    repeatable: Boolean = true,
    bytes: Long = 0,
    rows: Option[Long] = None,
    tasksDone: Int = 0,
    tasksTotal: Int = 0,
    runMs: Long = 0,
    standsFor: String = "",
    partitions: Int = 0,
    holder: Option[SparkPlan] = None,
    dependsOn: mutable.LinkedHashSet[String] = mutable.LinkedHashSet()) {

  def json: JObject = ("id" -> id) ~ ("kind" -> kind) ~ ("state" -> state) ~ ("depends_on" -> dependsOn.toSeq) ~
    ("fingerprint" -> text(fingerprint.toOption)) ~ ("refusal" -> text(fingerprint.left.toOption)) ~ ("in_initial_plan" -> inInitialPlan) ~
    ("stored" -> stored) ~ ("repeatable" -> repeatable) ~ ("bytes" -> bytes) ~ ("rows" -> rows.fold[JValue](JNull)(JLong(_))) ~ ("tasks_done" -> tasksDone) ~ ("tasks_total" -> tasksTotal) ~
    ("run_ms" -> runMs) ~ ("operator" -> operator) ~ ("stands_for" -> standsFor) ~ ("partitions" -> partitions)

  private def text(value: Option[String]): JValue = value.fold[JValue](JNull)(JString(_))
}

/**
 * The stage graph of one running query: AQE's query stages are the finished and running pipelines, exchanges
 * that are no stage yet the waiting ones. Everything is looked at, nothing is touched: asking an exchange for
 * a lazy value would start it.
 */
class Snapshot(execution: Long, plan: SparkPlan, session: SparkSession, watch: Watch) {
  private var prints = new Fingerprint(session)
  private val seen = new IdentityHashMap[AnyRef, String]
  private val adaptives = new IdentityHashMap[AnyRef, AnyRef]
  private val found = mutable.ArrayBuffer[PipelineView]()
  private val initial = mutable.Set[String]()

  val pipelines: Seq[PipelineView] = {
    val reads = mutable.LinkedHashSet[String]()
    visit(plan, reads)
    val answer = PipelineView(s"$execution.r", "result", if (resultRunning) "running" else "waiting", Left("the answer of the query"),
      plan.nodeName, inInitialPlan = true, dependsOn = reads)
    (found.toSeq :+ answer).map(p => p.copy(inInitialPlan = p.inInitialPlan || p.fingerprint.exists(initial.contains)))
  }

  /** A command stays at the root, above what is adaptive. Where nothing is, nothing tells, and the answer counts as under way. */
  def resultRunning: Boolean =
    command.collectFirst { case a: AdaptiveSparkPlanExec => a.isFinalPlan || a.executedPlan.isInstanceOf[ResultQueryStageExec] }.getOrElse(true)

  /**
   * Whether it writes, and has made room for its output (folders are made, old files deleted) before its stages begin.
   * Not if the command itself is part of what is adaptive, nor if it commits to an existing table at its end.
   */
  def writesFirst: Boolean = command.exists {
    case _: DataWritingCommandExec => true
    case v: V2CommandExec => !v.isInstanceOf[V2ExistingTableWriteExec]
    case _ => false
  }

  private def command: SparkPlan = plan match { case c: CommandResultExec => c.commandPhysicalPlan; case other => other }

  private def visit(p: SparkPlan, reads: mutable.Set[String]): Unit = p match {
    case a: AdaptiveSparkPlanExec =>
      // A cached table was planned in a session of its own, with other settings.
      val outer = prints
      if (a.context.session ne session) prints = new Fingerprint(a.context.session)
      enter(a)
      visit(a.executedPlan, reads)
      prints = outer
    case s: ShuffleQueryStageExec => reads += once(s.shuffle, shuffle(_, s), s.shuffle)
    case b: BroadcastQueryStageExec => reads += once(b.broadcast, broadcast(_, b), b.broadcast)
    case t: TableCacheQueryStageExec => visit(t.plan, reads)
    case r: ResultQueryStageExec => visit(r.plan, reads)
    case c: InMemoryTableScanExec => reads += once(c.relation.cacheBuilder, cache(_, c), c.relation.cacheBuilder.cachedPlan, within = true)
    case e: Exchange => reads += once(e, waiting(_, e), e)
    case r: ReusedExchangeExec => visit(r.child, reads)
    case c: CommandResultExec => visit(c.commandPhysicalPlan, reads)
    case _ =>
      p.subqueries.foreach(s => reads += once(s, subquery(_, s), s))
      p.children.foreach(visit(_, reads))
  }

  private def once(key: AnyRef, view: String => PipelineView, beneath: SparkPlan, within: Boolean = false): String = {
    if (!seen.containsKey(key)) {
      val id = s"$execution.${seen.size}"
      seen.put(key, id)
      val pipeline = view(id)
      if (within) visit(beneath, pipeline.dependsOn)
      else (beneath.subqueries.foreach(s => pipeline.dependsOn += once(s, subquery(_, s), s)), beneath.children.foreach(visit(_, pipeline.dependsOn)))
      found += pipeline
    }
    seen.get(key)
  }

  /** Remembers which exchanges the initial plan had: those are met again by the first plan of the next driver. */
  private def enter(a: AdaptiveSparkPlanExec): Unit = if (adaptives.put(a, a) == null) {
    a.initialPlan.foreach {
      case s: Stored => initial += s.fragment.fingerprint
      case e: Exchange => initial ++= prints.exchange(e).toOption
      case _ =>
    }
  }

  /** Its fingerprint, and whether its rows are in the store. */
  private def known(e: Exchange): (Either[String, String], Boolean) = e match {
    case s: Stored if Substitute.isRevoked(s.replaced) => (Left("its query computes it anew, with what it was made of"), false)
    case s: Stored => kept(s.fragment)
    case _ => (prints.exchange(e), false)
  }

  private def kept(f: Fragment): (Either[String, String], Boolean) =
    if (Fragments.get(f.fingerprint).isDefined) (Right(f.fingerprint), true) else (Left("its stored rows were lost, and computed again"), false)

  private def shuffle(id: String, s: ShuffleQueryStageExec): PipelineView = {
    val statistics = Snapshot.statistics(s)
    val runtime = statistics.map(_ => s.getRuntimeStatistics)
    val (print, stored) = known(s.shuffle)
    // Once its job is submitted it has an id; before that, asking would make one.
    val shuffleId = s.shuffle match {
      case e: ShuffleExchangeExec if e.futureAction.get().isDefined || s.isMaterialized => Some(e.shuffleId)
      case _ => None
    }
    val (tasksDone, tasks) = shuffleId.map(watch.tasks).getOrElse((0, 0))
    PipelineView(id, "shuffle", if (statistics.isDefined || stored) "finished" else "running", print, s.shuffle.simpleString(8), inInitialPlan = stored, stored, Fingerprint.repeatable(s.shuffle),
      bytes = statistics.flatMap(Option(_)).map(_.bytesByPartitionId.sum).getOrElse(0L), rows = runtime.flatMap(_.rowCount).map(_.toLong),
      tasksDone, tasks, shuffleId.map(watch.runMs).getOrElse(0L), standsFor(s), s.shuffle.outputPartitioning.numPartitions, Some(s))
  }

  private def broadcast(id: String, b: BroadcastQueryStageExec): PipelineView = {
    val (print, stored) = known(b.broadcast)
    val ms = b.broadcast match {
      case x: BroadcastExchangeExec => Seq("collectTime", "buildTime").map(x.metrics(_).value).filter(_ > 0).sum
      case _ => 0L
    }
    val state = if (stored) "finished" else Snapshot.state(b, begun = ms > 0)
    val runtime = if (state == "finished") Some(b.getRuntimeStatistics) else None
    // The relation's own size counts memory pages: 64 MB for a thousand rows.
    val bytes = runtime.map(s => s.rowCount.map(_ * EstimationUtils.getSizePerRow(b.output)).fold(s.sizeInBytes)(_.min(s.sizeInBytes)).toLong)
    PipelineView(id, "broadcast", state, print, b.broadcast.simpleString(8), inInitialPlan = stored, stored, Fingerprint.repeatable(b.broadcast), bytes.getOrElse(0L),
      runtime.flatMap(_.rowCount).map(_.toLong), runMs = ms, standsFor = standsFor(b), partitions = 1, holder = Some(b))
  }

  private def cache(id: String, c: InMemoryTableScanExec): PipelineView = {
    val builder = c.relation.cacheBuilder
    val (print, stored) = builder.cachedPlan match {
      case s: Stored => kept(s.fragment)
      case plan => (CacheBuilds.problem(CacheBuilds.tables(builder)).toLeft(()).flatMap(_ => new Fingerprint(plan.session).cache(plan)), false)
    }
    val buffers = CacheAccess.buffers(builder)
    val done = buffers.isDefined && c.isMaterialized
    val runtime = if (done) Some(c.runtimeStatistics) else None
    PipelineView(id, "cache", if (done || stored) "finished" else "running", print, c.simpleString(8), inInitialPlan = true, stored, Repeatable(builder.cachedPlan),
      runtime.map(_.sizeInBytes.toLong).getOrElse(0L), runtime.flatMap(_.rowCount).map(_.toLong),
      runMs = buffers.map(r => watch.cacheRunMs(r.id)).getOrElse(0L), holder = Some(c))
  }

  /** Not a stage yet; but what is in the store waits for nothing. */
  private def waiting(id: String, e: Exchange): PipelineView = {
    val (print, stored) =
      if (adaptives.isEmpty) (Left("the query is not adaptive (spark.sql.adaptive.enabled) and starts again on a move"), false) else known(e)
    PipelineView(id, if (e.isInstanceOf[BroadcastExchangeLike]) "broadcast" else "shuffle", if (stored) "finished" else "waiting", print,
      e.simpleString(8), inInitialPlan = stored, stored, Fingerprint.repeatable(e), standsFor = standsFor(e), partitions = e.outputPartitioning.numPartitions)
  }

  private def subquery(id: String, s: SparkPlan): PipelineView = {
    val done = s.children.exists { case a: AdaptiveSparkPlanExec => a.isFinalPlan; case _ => false }
    PipelineView(id, "subquery", if (done) "finished" else "running", Left("the value of a subquery is computed again from what lies beneath it"),
      s.nodeName, inInitialPlan = true, repeatable = Repeatable(s))
  }

  private def standsFor(p: SparkPlan): String = {
    val plan = p match { case s: QueryStageExec => s.plan; case other => other }
    Substitute.link(plan).map(_.simpleString(8)).getOrElse("").take(200)
  }
}

object Snapshot {
  /**
   * None: not finished. Some(null): finished without a single mapper. A parked query does not hear of stages
   * that end after it was parked, so the shuffle's own future is asked, if it was ever started.
   */
  def statistics(s: ShuffleQueryStageExec): Option[MapOutputStatistics] =
    if (s.isMaterialized) Some(s.mapStats.orNull)
    else s.shuffle.futureAction.get().flatMap(_.value).flatMap(_.toOption)

  /** The same for a broadcast; its future may only be asked for once it has begun, or asking would begin it. */
  private def state(b: BroadcastQueryStageExec, begun: Boolean): String =
    if (b.isMaterialized) "finished"
    else if (!begun || !b.broadcast.relationFuture.isDone) "running"
    else if (Try(b.broadcast.relationFuture.get()).isSuccess) "finished"
    else "waiting"
}
