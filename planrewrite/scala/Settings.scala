package org.apache.spark.sql.godwit

import java.util.TimeZone

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.classic.SparkSession

/**
 * Settings that can change a row: of the session, of the readers of files, which take theirs from Hadoop's
 * configuration and from whatever else the session has been told, of the executors' environment, and Java's own:
 * its versions print numbers and know time zones differently. Any difference between two drivers is a miss, but in
 * what is known to be neutral.
 */
private[godwit] object Settings {
  private val Neutral = Seq(
    "spark.sql.extensions", "spark.sql.warehouse.dir", "spark.sql.catalogImplementation", "spark.sql.ui.",
    "spark.sql.adaptive.logLevel", "spark.sql.codegen.useIdInClassName", "spark.sql.queryExecutionListeners",
    "spark.sql.execution.broadcastExchange.maxThreadThreshold", "spark.sql.broadcastTimeout",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled", "spark.sql.artifact.")

  /** How to reach files, not how to read them; keys to a store change from hour to hour. */
  private val NeutralForHadoop = Seq("fs.", "dfs.", "hadoop.", "yarn.", "ipc.", "ha.", "rpc.", "net.", "hive.metastore.",
    "hive.server2.", "hive.zookeeper.", "hive.exec.", "javax.jdo.", "mapreduce.jobhistory.", "mapreduce.cluster.", "mapreduce.jobtracker.",
    "mapreduce.job.", "mapred.local.")

  private val Secret = "(?i)secret|password|token|credential|access[.]?key".r

  /** It changes from hour to hour, and does not travel: see `godwit.extractor.sparkconf`. */
  def secret(key: String): Boolean = Secret.findFirstIn(key).isDefined

  def of(session: SparkSession): String = {
    val conf = session.sessionState.conf
    val own = conf.getAllConfs.collect { case (key, value) if relevant(key) => s"$key=$value" }
    (own.toSeq.sorted ++ changed(session.sparkContext.hadoopConfiguration))
      .mkString("", "\n", Seq(conf.sessionLocalTimeZone, TimeZone.getDefault.getID, System.getProperty("java.runtime.version")).mkString("\n", "\n", ""))
  }

  private def relevant(key: String): Boolean =
    if (key.startsWith("spark.sql.")) !Neutral.exists(key.startsWith)
    else (!key.startsWith("spark.") || key.startsWith("spark.executorEnv.")) && !secret(key)

  /** All that is not Hadoop's own default. */
  private def changed(hadoop: Configuration): Seq[String] = hadoop.iterator.asScala.collect {
    case entry if !NeutralForHadoop.exists(entry.getKey.startsWith) && !default(hadoop, entry.getKey) => s"hadoop ${entry.getKey}=${entry.getValue}"
  }.toSeq.sorted

  private def default(hadoop: Configuration, key: String): Boolean =
    Option(hadoop.getPropertySources(key)).exists(_.lastOption.exists(_.endsWith("-default.xml")))
}
