package org.apache.spark.sql.godwit

import java.util.concurrent.{Executors, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{Schedulable, TaskSchedulerImpl, TaskSetManager}
import org.apache.spark.sql.execution.SQLExecution

/**
 * A move under a deadline cannot wait for tasks of the program that hold every core, and Spark's queue serves
 * the older job first. So while state is written Godwit's tasks are the first in the queue, and where they still
 * find no core, the youngest tasks of the program's queries are killed. To Spark that is no failure: should the move
 * come to nothing, it runs them again. Tasks outside of any query are let be: what they do twice may show.
 */
private class Precedence(sc: SparkContext, kills: Boolean) extends AutoCloseable with Logging {
  private val timer = Executors.newSingleThreadScheduledExecutor { task =>
    val thread = new Thread(task, "godwit-precedence")
    thread.setDaemon(true)
    thread
  }
  timer.scheduleWithFixedDelay(() => look(), Precedence.LookMs, Precedence.LookMs, TimeUnit.MILLISECONDS)

  override def close(): Unit = timer.shutdownNow()

  private def look(): Unit = try sc.taskScheduler match {
    case s: TaskSchedulerImpl => s.synchronized(inTheWay(s)).foreach(sc.killTaskAttempt(_, interruptThread = true, Precedence.Reason))
    case _ =>
  } catch { case NonFatal(e) => logWarning("godwit: the extraction has no precedence, it may have to wait for tasks of the program", e) }

  private def inTheWay(s: TaskSchedulerImpl): Seq[Long] = {
    val (own, others) = Precedence.managers(s.rootPool).partition(_.taskSet.properties.getProperty(Precedence.Key) != null)
    own.foreach(_.priority = Precedence.First)
    val moving = own.filter(kills && _.taskSet.properties.getProperty(SparkContext.SPARK_JOB_GROUP_ID) == Watch.JobGroup)
    val waiting = moving.map(m => m.copiesRunning.indices.count(i => m.copiesRunning(i) == 0 && !m.successful(i))).sum
    val ofQueries = others.filter(_.taskSet.properties.getProperty(SQLExecution.EXECUTION_ID_KEY) != null)
    ofQueries.flatMap(_.taskAttempts.flatten.filter(_.running)).sortBy(-_.launchTime).take(waiting).map(_.taskId)
  }
}

object Precedence {
  /** A local property of jobs that come first, while somebody has `first` under way. */
  val Key = "godwit.first"

  /** The jobs of this thread come first. */
  def first[T](sc: SparkContext, kills: Boolean)(work: => T): T = {
    val precedence = new Precedence(sc, kills)
    val before = sc.getLocalProperty(Key)
    sc.setLocalProperty(Key, "true")
    try work finally { sc.setLocalProperty(Key, before); precedence.close() }
  }

  private val LookMs = 100L
  private val First = -1 // a job's priority is its id
  private val Reason = "godwit needs the core to move the query's state"

  private def managers(s: Schedulable): Seq[TaskSetManager] = s match {
    case m: TaskSetManager => Seq(m)
    case pool => pool.schedulableQueue.asScala.toSeq.flatMap(managers)
  }
}
