package org.apache.spark.sql.godwit

import java.util.Properties
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.adaptive.{AdaptiveSparkPlanExec, QueryStageExec}
import org.apache.spark.sql.execution.columnar.{CacheAccess, CachedRDDBuilder, InMemoryTableScanExec}
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec

/**
 * What a program has told Spark for the jobs of one thread (`setLocalProperty`, `setJobGroup` ...). A Python function
 * reads it in its task, so that two queries which differ in nothing else have other rows.
 */
private[godwit] object Told {
  private val Tags = "spark.job.tags"
  private val OfSpark = Settings.NumbersOfQueries ++ Set("spark.rdd.scope", "spark.rdd.scope.noOverride", Tags, "spark.job.interruptOnCancel",
    "callSite.short", "callSite.long", Precedence.Key)

  /** In this thread, which is the query's. */
  def here(session: SparkSession): Map[String, String] = {
    val all = session.sparkContext.getLocalProperties.asScala.toMap
    // While a query runs, its settings are told to its tasks in the same way.
    val settings = session.sessionState.conf.getAllConfs
    all.filter { case (key, _) => toTasks(key) && !settings.contains(key) } ++ all.get(Tags).map(ofPeople).filter(_.nonEmpty).map(Tags -> _)
  }

  /** Whatever Spark has not put there itself. */
  def toTasks(key: String): Boolean = !OfSpark(key) && !key.startsWith("__")

  /** Sessions and executions have tags too, with numbers that are drawn. */
  private def ofPeople(tags: String): String = tags.split(",").filterNot(_.startsWith("spark-")).sorted.mkString(",")
}

/**
 * Under which settings the rows of cached tables were made. A table is planned under those of the moment when it is
 * declared, but filled under those of whichever query comes first, and its partitions by several.
 */
private[godwit] object CacheBuilds {
  private val met = new ConcurrentHashMap[Int, Set[Seq[String]]]

  def forget(): Unit = met.clear()

  /** Waits until all jobs that have begun are noted; false: they are not. */
  @volatile var settle: () => Boolean = () => false

  /** A job of the program has met the cached rows of this RDD: it may have made some of them. */
  def note(rdd: Int, job: Properties): Unit = met.merge(rdd, Set(Settings.ofJob(job)), (a, b) => a ++ b)

  /** Why nobody may rely on the rows of cached tables. */
  def problem(tables: Seq[CachedRDDBuilder]): Option[String] = tables.iterator.flatMap(problem(_)).nextOption()

  /** Rows that came from the store were made under the settings that their fingerprint names. */
  private def problem(table: CachedRDDBuilder): Option[String] = table.cachedPlan match {
    case s: Stored if Fragments.get(s.fragment.fingerprint).isDefined => None
    case plan => CacheAccess.buffers(table).flatMap { rdd =>
      def heard(settings: Seq[String]) = if (listens(plan)) settings else settings.filter(Settings.changesRows)
      def alike(job: Seq[String]) = heard(job) == heard(Settings.ofCache(plan.session))
      if (!met.containsKey(rdd.id) && !settle()) Some("a cached table, as Spark's events are late")
      else if (met.getOrDefault(rdd.id, Set.empty).forall(alike)) None
      else Some("a cached table that was filled under other settings than its own")
    }
  }

  /** Only a function in Python can ask what its thread was told. */
  private def listens(p: SparkPlan): Boolean = p match {
    case c: InMemoryTableScanExec => listens(c.relation.cacheBuilder.cachedPlan)
    case s: QueryStageExec => listens(s.plan)
    case a: AdaptiveSparkPlanExec => listens(a.initialPlan)
    case s: Stored => listens(s.replaced)
    case r: ReusedExchangeExec => listens(r.child)
    case other => other.expressions.exists(_.exists(_.isInstanceOf[PythonFuncExpression])) || (other.children ++ other.subqueries).exists(listens)
  }

  /** All that a plan reads, directly or not. */
  def tables(p: SparkPlan): Seq[CachedRDDBuilder] = p match {
    case c: InMemoryTableScanExec => tables(c.relation.cacheBuilder)
    case s: QueryStageExec => tables(s.plan)
    case a: AdaptiveSparkPlanExec => tables(a.initialPlan)
    case s: Stored => tables(s.replaced)
    case r: ReusedExchangeExec => tables(r.child)
    case other => (other.children ++ other.subqueries).flatMap(tables).distinct
  }

  def tables(table: CachedRDDBuilder): Seq[CachedRDDBuilder] = (table +: tables(table.cachedPlan)).distinct
}
