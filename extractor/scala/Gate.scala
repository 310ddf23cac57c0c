package org.apache.spark.sql.godwit

import java.util.Collections
import java.util.concurrent.{ConcurrentHashMap, LinkedBlockingQueue, TimeUnit}

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkContext
import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.{EmptyRelation, LogicalPlan}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{SparkPlan, SQLExecution}
import org.apache.spark.sql.execution.adaptive.{LogicalQueryStage, QueryStageExec, StageAccess}
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec

/**
 * How a query is stopped without its program seeing anything: its thread waits here, at AQE's next
 * re-planning, until the gate opens again or the process is gone. No exception, no handler of the program.
 * A query that begins while the gate is closed waits before it is optimized.
 */
object Gate {
  @volatile private var closed = false
  private val parkedExecutions = ConcurrentHashMap.newKeySet[java.lang.Long]
  private val finished = Collections.newSetFromMap(new java.util.WeakHashMap[AnyRef, java.lang.Boolean])
  @volatile private var stopAfter = 0
  private var finishedCount = 0

  def close(): Unit = synchronized { closed = true }
  def open(): Unit = synchronized { closed = false; notifyAll() }
  def parked: Set[Long] = parkedExecutions.asScala.map(_.longValue).toSet
  def stagesFinished: Int = synchronized(finishedCount)
  def forgetStages(): Unit = synchronized { finishedCount = 0 }
  def setStopAfter(stages: Int): Unit = synchronized { stopAfter = stages }

  /** For what no query holds: it waits while the gate is closed, and has begun before it can be closed again. */
  def pass(begin: => Unit): Unit = synchronized {
    while (closed) wait()
    begin
  }

  def pass(): Unit = if (closed) synchronized {
    // A subquery that waits does not hold its query, which may have no use for it any more.
    val ofSubquery = Thread.currentThread.getName.startsWith("subquery")
    val execution = SparkContext.getActive.filterNot(_ => ofSubquery).flatMap(sc => Option(sc.getLocalProperty(SQLExecution.EXECUTION_ID_KEY))).map(id => Long.box(id.toLong))
    execution.foreach(parkedExecutions.add)
    try while (closed) wait() finally execution.foreach(parkedExecutions.remove)
  }

  /** Counts the query stages that this re-planning finds finished, each once, and closes the gate at the asked number. */
  def count(plan: LogicalPlan): Unit = synchronized {
    countStages(plan)
    if (stopAfter > 0 && finishedCount >= stopAfter) {
      stopAfter = 0
      closed = true
      Notices.raise("stages")
    }
  }

  /** A stage without rows may leave nothing for the rest to do: AQE has by then put what it was part of aside, in an empty relation. */
  private def countStages(plan: LogicalPlan): Unit = plan.foreach {
    case LogicalQueryStage(_, physical) => physical.foreach(countStages(_: SparkPlan))
    case EmptyRelation(unread) => countStages(unread)
    case _ =>
  }

  private def countStages(p: SparkPlan): Unit = p match {
    case stage: QueryStageExec =>
      if (!stored(stage.plan) && stage.isMaterialized && finished.add(StageAccess.identity(stage))) finishedCount += 1
      stage.plan.foreach(countStages(_: SparkPlan))
    case _ =>
  }

  private def stored(p: SparkPlan): Boolean = p match {
    case r: ReusedExchangeExec => stored(r.child)
    case c: InMemoryTableScanExec => stored(c.relation.cacheBuilder.cachedPlan)
    case _: Stored => true
    case _ => false
  }
}

/** What happens to the driver from outside, for the agent to fetch. */
object Notices {
  private val queue = new LinkedBlockingQueue[(String, Long)]

  def raise(kind: String): Unit = queue.put((kind, System.currentTimeMillis()))
  def await(timeoutMs: Long): Option[(String, Long)] = Option(queue.poll(timeoutMs, TimeUnit.MILLISECONDS))

  /** Spark ends the JVM in its shutdown hooks within a second of a SIGTERM, before Python hears of it. */
  def takeSigterm(): Unit = sun.misc.Signal.handle(new sun.misc.Signal("TERM"), _ => raise("sigterm"))
}

/** Beneath a re-planning of AQE: no stage starts between a finished one and the gate. */
case class GateAtReplanning() extends Rule[LogicalPlan] {
  override def apply(plan: LogicalPlan): LogicalPlan = { Gate.count(plan); Gate.pass(); plan }
}

case class GateAtStart() extends Rule[LogicalPlan] {
  override def apply(plan: LogicalPlan): LogicalPlan = { Gate.pass(); plan }
}

/** Named in `spark.sql.extensions` by the activation. */
class Extensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    extensions.injectPreCBORule(_ => GateAtStart())
    extensions.injectPreCBORule(_ => SubstituteCaches())
    extensions.injectRuntimeOptimizerRule(_ => GateAtReplanning())
    extensions.injectQueryStagePrepRule(session => Substitute(session.asInstanceOf[SparkSession]))
  }
}
