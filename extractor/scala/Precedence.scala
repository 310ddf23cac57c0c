package org.apache.spark.sql.godwit

import java.util.concurrent.{Executors, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.{Schedulable, TaskSchedulerImpl, TaskSetManager}

/**
 * A move under a deadline cannot wait for tasks of the program that hold every core, and Spark's queue serves
 * the older job first. So while state is written Godwit's tasks are the first in the queue, and where they still
 * find no core, the program's youngest tasks are killed. To Spark that is no failure: should the move come to
 * nothing, it runs them again.
 */
class Precedence(sc: SparkContext) extends AutoCloseable with Logging {
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
    val (own, others) = Precedence.managers(s.rootPool).partition(_.taskSet.properties.getProperty(SparkContext.SPARK_JOB_GROUP_ID) == Watch.JobGroup)
    own.foreach(_.priority = Precedence.First)
    val waiting = own.map(m => m.copiesRunning.indices.count(i => m.copiesRunning(i) == 0 && !m.successful(i))).sum
    others.flatMap(_.taskAttempts.flatten.filter(_.running)).sortBy(-_.launchTime).take(waiting).map(_.taskId)
  }
}

object Precedence {
  private val LookMs = 100L
  private val First = -1 // a job's priority is its id
  private val Reason = "godwit needs the core to move the query's state"

  private def managers(s: Schedulable): Seq[TaskSetManager] = s match {
    case m: TaskSetManager => Seq(m)
    case pool => pool.schedulableQueue.asScala.toSeq.flatMap(managers)
  }
}
