package org.apache.spark.sql.godwit

import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue, CountDownLatch, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.{SparkContext, Success}
import org.apache.spark.scheduler._
import org.apache.spark.sql.catalyst.QueryPlanningTracker
import org.apache.spark.sql.catalyst.analysis.{GlobalTempView, LocalTempView}
import org.apache.spark.sql.catalyst.plans.logical.{Command, LogicalPlan, ParsedStatement}
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.command._
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec
import org.apache.spark.sql.execution.ui.{SparkListenerSQLExecutionEnd, SparkListenerSQLExecutionStart}

/** What has run on this driver: jobs and queries under way, run times of shuffles, and side effects that are done. */
class Watch(sc: SparkContext) extends SparkListener {
  private val jobs = ConcurrentHashMap.newKeySet[Int]
  private val started = new ConcurrentHashMap[Long, String]
  private val shuffleRunMs = new ConcurrentHashMap[Int, Long]
  private val cachesRunMs = new ConcurrentHashMap[Int, Long]
  private val shuffleTasks = new ConcurrentHashMap[Int, (Int, Int)]
  private val shuffleOfStage = new ConcurrentHashMap[Int, Int]
  private val effectJobs = new ConcurrentHashMap[Int, String]
  @volatile private var stages = 0

  /** In a queue of its own: who listens slowly is waited for, and may make Spark drop events, in the common one. */
  def start(): Unit = {
    sc.listenerBus.addToQueue(this, Watch.Queue)
    CacheBuilds.settle = () => settle()
  }

  /** Waits until all that has happened is known here. False: it is not, the events come faster than they are read. */
  def settle(withinMs: Long = Watch.SettleMs): Boolean = {
    val mark = new Watch.Mark
    sc.listenerBus.post(mark)
    mark.met.await(withinMs, TimeUnit.MILLISECONDS)
  }

  private def dropped: Boolean = sc.listenerBus.metrics.metricRegistry.counter(s"queue.${Watch.Queue}.numDroppedEvents").getCount > 0

  def idle: Boolean = jobs.isEmpty
  def executions: Seq[(Long, String)] = started.asScala.toSeq.sortBy(_._1)
  def runMs(shuffleId: Int): Long = shuffleRunMs.getOrDefault(shuffleId, 0L)
  /** Of the first stage that has met the cached rows of this RDD: later ones only read them. */
  def cacheRunMs(rdd: Int): Long = cachesRunMs.getOrDefault(rdd, 0L)
  /** Done, and all. */
  def tasks(shuffleId: Int): (Int, Int) = shuffleTasks.getOrDefault(shuffleId, (0, 0))
  /** Done, or under way outside of any query, where no gate can hold it. The first ones: nobody asks for a thousand. */
  def sideEffects: Seq[String] = {
    val under = effectJobs.asScala.toSeq.map { case (job, name) => s"job $job is running: $name" } // first: they become the others
    val unknown = if (dropped) Seq("perhaps more than is known, as Spark has dropped events of it") else Nil
    (Watch.effects.asScala.take(Watch.Shown).toSeq ++ under ++ unknown).take(Watch.Shown)
  }
  /** Commands that Spark has begun to plan, and not told of yet: no gate may hold them any more. */
  def planning: Seq[Long] = SQLExecution.executionIdToQueryExecution.asScala.toSeq.collect {
    case (id, qe) if !started.containsKey(id) && qe.logical.exists(Watch.command) => id
  }
  def stagesRun: Int = stages

  override def onJobStart(start: SparkListenerJobStart): Unit = {
    val own = Option(start.properties).exists(_.getProperty(SparkContext.SPARK_JOB_GROUP_ID) == Watch.JobGroup)
    if (!own) {
      jobs.add(start.jobId)
      start.stageInfos.flatMap(_.rddInfos).filter(_.storageLevel.isValid).map(_.id).distinct.foreach(CacheBuilds.note(_, start.properties))
    }
    start.stageInfos.map(_.name).find(n => n.contains("SparkHadoopWriter") || n.startsWith("foreach")).foreach(effectJobs.put(start.jobId, _))
  }

  override def onJobEnd(end: SparkListenerJobEnd): Unit = {
    jobs.remove(end.jobId)
    Option(effectJobs.get(end.jobId)).foreach(name => Watch.effects.add(s"job ${end.jobId}: $name"))
    effectJobs.remove(end.jobId)
  }

  override def onStageSubmitted(start: SparkListenerStageSubmitted): Unit = start.stageInfo.shuffleDepId.foreach { id =>
    shuffleOfStage.put(start.stageInfo.stageId, id)
    shuffleTasks.putIfAbsent(id, (0, start.stageInfo.numTasks))
  }

  override def onTaskEnd(end: SparkListenerTaskEnd): Unit = if (end.reason == Success && shuffleOfStage.containsKey(end.stageId)) {
    shuffleTasks.computeIfPresent(shuffleOfStage.get(end.stageId), (_, counted) => (math.min(counted._1 + 1, counted._2), counted._2))
  }

  override def onStageCompleted(end: SparkListenerStageCompleted): Unit = {
    val info = end.stageInfo
    shuffleOfStage.remove(info.stageId)
    if (info.failureReason.isEmpty) stages += 1
    info.rddInfos.filter(_.storageLevel.isValid).foreach(r => cachesRunMs.putIfAbsent(r.id, info.taskMetrics.executorRunTime))
    info.shuffleDepId.foreach(id => shuffleRunMs.merge(id, info.taskMetrics.executorRunTime, (a: Long, b: Long) => a + b))
  }

  override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
    case s: SparkListenerSQLExecutionStart => started.put(s.executionId, s.description)
    case e: SparkListenerSQLExecutionEnd =>
      // One that failed may have written as well. One that could not be planned has not: its commands are executions of
      // their own. It is not even asked for its plan: Spark would write this thread into the program's own exception.
      for (qe <- Option(e.qe) if qe.tracker.phases.contains(QueryPlanningTracker.PLANNING)) {
        val what = try Watch.effect(qe) catch { case NonFatal(error) => Some(s"a plan that cannot be read: $error") }
        what.foreach(w => Watch.effects.add(s"execution ${e.executionId}: $w"))
      }
      started.remove(e.executionId) // last: who finds it gone finds its effect
    case m: Watch.Mark => m.met.countDown()
    case _ =>
  }
}

object Watch {
  /** Nobody else's. */
  val JobGroup: String = s"godwit-${java.util.UUID.randomUUID()}"

  /** Of the whole program: a second context in it does not undo what the first has written. */
  private val effects = new ConcurrentLinkedQueue[String]
  private val SettleMs = 2000L
  private val Shown = 100
  private val Queue = "godwit"

  /** An event that says nothing: who meets it has met all before it. */
  private class Mark extends SparkListenerEvent {
    val met = new CountDownLatch(1)
    override protected[spark] def logEvent: Boolean = false
  }

  def begun(name: String): Unit = effects.add(s"$name of an RDD")

  private def command(p: LogicalPlan): Boolean = p.isInstanceOf[Command] || p.isInstanceOf[ParsedStatement]

  /** A batch of a streaming query: what it writes is not in its plan. (The class is in another package in each version.) */
  def streams(qe: QueryExecution): Boolean = qe.getClass.getSimpleName == "IncrementalExecution"

  def effect(qe: QueryExecution): Option[String] = if (streams(qe)) Some("a batch of a streaming query") else effect(qe.executedPlan)

  /** The side effect of a plan, if it has one. Commands count as such unless they are known to be none. */
  def effect(plan: SparkPlan): Option[String] = plan match {
    case w: DataWritingCommandExec => Some(w.cmd.nodeName)
    case ExecutedCommandExec(c) => if (harmless(c)) None else Some(c.nodeName)
    case v: V2CommandExec => if (harmlessNames.exists(v.nodeName.startsWith)) None else Some(v.nodeName)
    case a: adaptive.AdaptiveSparkPlanExec => effect(a.inputPlan)
    case other => other.children.iterator.flatMap(effect).nextOption() // several inserts are a union of commands
  }

  private val harmlessNames = Seq("Show", "Describe", "Explain", "Set", "Reset", "List", "Refresh", "CacheTable", "UncacheTable",
    "ClearCache", "AddJar", "AddFile", "AddArchive", "Analyze", "CreateTempViewUsing", "DropTempView", "CreateVariable", "DropVariable")

  private def harmless(c: RunnableCommand): Boolean = c match {
    case v: CreateViewCommand => v.viewType == LocalTempView || v.viewType == GlobalTempView
    case f: CreateFunctionCommand => f.isTemp
    case f: CreateSQLFunctionCommand => f.isTemp
    case f: DropFunctionCommand => f.isTemp
    case other => harmlessNames.exists(other.nodeName.startsWith)
  }
}
