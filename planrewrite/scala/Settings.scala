package org.apache.spark.sql.godwit

import java.util.{Locale, Properties, TimeZone}

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkContext
import org.apache.spark.sql.classic.SparkSession

/**
 * Settings that can change a row: of the session, of the readers of files, which take theirs from Hadoop's
 * configuration and from whatever else the session has been told, of the executors' environment, and Java's own:
 * its versions print numbers and know time zones differently. Any difference between two drivers is a miss, but in
 * what is known to be neutral.
 */
private[godwit] object Settings {
  private val Neutral = Seq(
    "spark.sql.warehouse.dir", "spark.sql.catalogImplementation", "spark.sql.ui.",
    "spark.sql.adaptive.logLevel", "spark.sql.codegen.useIdInClassName", "spark.sql.queryExecutionListeners",
    "spark.sql.execution.broadcastExchange.maxThreadThreshold", "spark.sql.broadcastTimeout",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled", "spark.sql.artifact.")

  /** How to reach files, not how to read them; keys to a store change from hour to hour. */
  private val NeutralForHadoop = Seq("fs.", "dfs.", "hadoop.", "yarn.", "ipc.", "ha.", "rpc.", "net.", "hive.metastore.",
    "hive.server2.", "hive.zookeeper.", "hive.exec.scratchdir", "hive.exec.stagingdir", "javax.jdo.", "mapreduce.jobhistory.", "mapreduce.cluster.", "mapreduce.jobtracker.",
    "mapreduce.job.", "mapred.local.")

  /** Whole words at a key's end: a tokenizer is no token. */
  private val Secret = "(?i)(^|[._-])(secret|password|token|credentials?|(secret|access)[._-]?key([._-]?id)?)$".r

  /** Of an executor's Java options those that say how its text and times are. */
  private val JavaOption = "-D(user[.]|file[.]encoding|java[.]locale[.]|java[.]time[.])\\S*".r

  /** The same of this very process, whoever has set them. */
  private val OfJava = Seq("java.runtime.version", "java.locale.providers", "java.locale.useOldISOCodes", "java.time.zone.DefaultZoneRulesProvider", "file.encoding")

  /** It changes from hour to hour, and does not travel: see `godwit.extractor.sparkconf`. */
  def secret(key: String): Boolean = Secret.findFirstIn(key).isDefined

  /** A variable by which a cloud hands out its keys: another one every hour. Other secrets may well be in the rows, as a salt is. */
  def rotates(variable: String): Boolean = OfClouds.matches(variable)

  private val OfClouds = "(AWS|AZURE|ARM|MSI|IDENTITY|GOOGLE|GCE|CLOUDSDK|ALIBABA_CLOUD|OCI)_.*".r

  def of(session: SparkSession): String = {
    val conf = session.sessionState.conf
    val own = conf.getAllConfs.collect { case (key, value) if relevant(key) => s"$key=${withoutGodwit(value)}" }
    val locales = Locale.getDefault +: Locale.Category.values.toSeq.map(Locale.getDefault(_))
    val java = (TimeZone.getDefault.getID +: locales.map(_.toLanguageTag)) ++ OfJava.map(key => s"$key=${System.getProperty(key)}") ++
      Seq("default", "extra").map(kind => s"spark.executor.${kind}JavaOptions").flatMap(key => JavaOption.findAllIn(conf.getConfString(key, "")))
    (own.toSeq.sorted ++ changed(session.sparkContext.hadoopConfiguration) ++ Seq(conf.sessionLocalTimeZone, s"ansi=${conf.ansiEnabled}") ++ java).mkString("\n")
  }

  /** Without those that plans alone look at: Spark plans a cached table under some of its own. */
  def ofTasks(session: SparkSession): Seq[String] = of(session).linesIterator.filterNot(line => OfPlans.exists(line.startsWith)).toSeq

  /** What a job tells its tasks: the session's settings, and what the program has said for its thread. */
  def ofJob(job: Properties): Seq[String] = ofTasks(job.asScala.filter { case (key, _) => counts(key) || Told.toTasks(key) })

  /** What a job would tell that makes a cached table under the settings with which it was planned. */
  def ofCache(session: SparkSession): Seq[String] = ofTasks(session.sessionState.conf.getAllConfs.filter { case (key, _) => key.startsWith("spark.") && (relevant(key) || Told.toTasks(key)) })

  /** Of a job's or a cached table's settings: whether it counts for rows in which no function asks what it was told. */
  def changesRows(setting: String): Boolean = counts(setting.takeWhile(_ != '='))

  /** Of what a job is told. */
  private def counts(key: String): Boolean = if (key.startsWith("spark.")) relevant(key) else Told.toTasks(key)

  private def ofTasks(settings: Iterable[(String, String)]): Seq[String] = settings.collect {
    case (key, value) if !OfPlans.exists(key.startsWith) && !NumbersOfQueries(key) => s"$key=${withoutGodwit(value)}"
  }.toSeq.sorted

  val NumbersOfQueries: Set[String] =
    Set("spark.sql.execution.id", "spark.sql.execution.root.id", "spark.sql.execution.query.id", "spark.sql.dataset.queryExecution.id")

  private val OfPlans = Seq("spark.sql.adaptive.", "spark.sql.sources.bucketing.")

  /** What a Python function can read on executors that are this very process's children: elsewhere it is theirs. */
  def environment(sc: SparkContext): Map[String, String] =
    if (sc.isLocal) System.getenv.asScala.toMap.filterNot { case (name, _) => OfOneProcess.matches(name) || rotates(name) } else Map.empty

  /** Names of one login, process, pod or launcher. */
  private val OfOneProcess = ("(_|GODWIT_|SPARK_|PYSPARK_|KUBERNETES_|SSH_|XDG_|MAKE|TMUX).*|MFLAGS|SHLVL|PWD|OLDPWD|HOSTNAME|TERM|COLORTERM|COLUMNS|LINES|" +
    "HOME|USER|LOGNAME|MAIL|SHELL|PS1|LS_COLORS|DISPLAY|WINDOWID|STY|INVOCATION_ID|JOURNAL_STREAM|JAVA_HOME|PATH|VIRTUAL_ENV|" +
    ".*_SERVICE_(HOST|PORT.*)|.*_PORT(_\\d+_(TCP|UDP).*)?").r

  private def withoutGodwit(value: String): String = value.split(",").filterNot(_ == classOf[Extensions].getName).mkString(",")

  private def relevant(key: String): Boolean =
    if (key.startsWith("spark.sql.")) !Neutral.exists(key.startsWith)
    else if (key.startsWith("spark.executorEnv.")) !rotates(key.stripPrefix("spark.executorEnv."))
    else !key.startsWith("spark.") && !secret(key)

  /** All that is not Hadoop's own default. Every planning asks for it, and where a setting is from takes long to tell. */
  private def changed(hadoop: Configuration): Seq[String] = {
    val now = new java.util.HashMap[String, String]
    hadoop.iterator.forEachRemaining(entry => now.put(entry.getKey, entry.getValue))
    val before = known
    if (before._1 == now) before._2 else {
      val found = now.asScala.collect {
        case (key, value) if !NeutralForHadoop.exists(key.startsWith) && !default(hadoop, key) => s"hadoop $key=$value"
      }.toSeq.sorted
      known = (now, found)
      found
    }
  }

  /** Of the last look. */
  @volatile private var known: (java.util.Map[String, String], Seq[String]) = (java.util.Map.of(), Nil)

  private def default(hadoop: Configuration, key: String): Boolean =
    Option(hadoop.getPropertySources(key)).exists(_.lastOption.exists(_.endsWith("-default.xml")))
}
