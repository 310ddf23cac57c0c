package org.apache.spark.sql.godwit

import java.io.{ByteArrayOutputStream, IOException}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.{Base64, Properties}
import java.util.concurrent.{Callable, Executors, TimeoutException, TimeUnit}
import java.util.zip.DeflaterOutputStream

import scala.util.{Failure, Success, Try}

import org.json4s._
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.hadoop.fs.Path
import org.apache.hadoop.mapred.JobConf

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.api.java.JavaSparkContext
import org.apache.spark.shuffle.sort.SortShuffleManager
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{QueryExecution, SQLExecution}
import org.apache.spark.sql.execution.adaptive.ShuffleQueryStageExec
import org.apache.spark.sql.internal.SQLConf

/**
 * The one door between the agent in Python and the driver's JVM: strings of JSON in and out, nothing is
 * decided here. See `godwit.extractor.jvm` for the other side.
 */
object Agent {
  private val MovedOut = 75
  private val EndMs = 3000L
  @volatile private var sc: SparkContext = _
  @volatile private var watch: Watch = _
  @volatile private var graceMs = 30000L

  def start(context: JavaSparkContext, options: String): Unit = {
    val json = parse(options)
    sc = context.sc
    graceMs = number(json \ "grace_ms").getOrElse(30000L)
    CacheBuilds.forget() // numbers of cached tables begin anew with each context
    watch = new Watch(sc)
    watch.start()
    Fallback.start(SparkEnv.get.rpcEnv)
    new JobConf() // reads mapred-site.xml, now and not at some query
    pin(SQLConf.LEAF_NODE_DEFAULT_PARALLELISM.key)
    pin(SQLConf.COALESCE_PARTITIONS_MIN_PARTITION_NUM.key)
    number(json \ "stop_after_stages").foreach(n => Gate.setStopAfter(n.toInt))
    Notices.takeSigterm()
  }

  /** For a standby, before it has a job. */
  def rehearse(session: SparkSession, base: String): Unit = new Rehearsal(session, base).run()
  def stopRehearsal(): Unit = Rehearsal.stop()

  /** Both default to the number of cores, which is another one on the next driver: rows of samples would change. */
  private def pin(key: String): Unit = sc.conf.setIfMissing(key, sc.defaultParallelism.toString)

  def pinned(): String = compact(render(JObject(
    Seq(SQLConf.LEAF_NODE_DEFAULT_PARALLELISM.key, SQLConf.COALESCE_PARTITIONS_MIN_PARTITION_NUM.key)
      .map(k => k -> JString(sc.conf.get(k))).toList)))

  def awaitNotice(timeoutMs: Long): String = Notices.await(timeoutMs).fold("") { case (kind, at) =>
    compact(render(("kind" -> kind) ~ ("at_ms" -> at) ~ ("grace_ms" -> graceMs)))
  }

  /** Once Python is gone, not before: what Spark's own end does to queries would be seen by the program. */
  def end(): Unit = {
    val thread = new Thread(() => { Thread.sleep(EndMs); System.exit(MovedOut) }, "godwit-end")
    thread.setDaemon(true)
    thread.start()
  }

  def closeGate(): Unit = Gate.close()
  def openGate(): Unit = Gate.open()
  def beginEffect(name: String): Unit = Gate.pass(Watch.begun(name))

  /** Quiet: no job of the program for two looks in a row, and no stage finished in between. */
  def awaitQuiet(timeoutMs: Long): Boolean = {
    val deadline = System.nanoTime() + timeoutMs * 1000000
    def look(): (Boolean, Int) = (watch.settle(math.max(1, (deadline - System.nanoTime()) / 1000000)) && watch.idle, watch.stagesRun)
    var last = look()
    var quiet = false
    while (!quiet && System.nanoTime() < deadline) {
      Thread.sleep(15)
      val now = look()
      quiet = last._1 && now._1 && last._2 == now._2
      last = now
    }
    quiet
  }

  private case class Live(execution: Long, description: String, qe: QueryExecution, view: Snapshot)

  private def live: Seq[Live] = watch.executions.flatMap { case (id, description) =>
    Option(SQLExecution.getQueryExecution(id)).map { qe =>
      Live(id, description, qe, new Snapshot(id, qe.executedPlan, qe.sparkSession, watch))
    }
  }

  def snapshot(): String = packed(picture())

  /** Py4J writes 8 kB at a time, and TCP holds a second, short piece back for 40 ms. Packed, a picture is one piece. */
  private def packed(text: String): String = {
    val bytes = new ByteArrayOutputStream
    val out = new DeflaterOutputStream(bytes)
    out.write(text.getBytes(UTF_8))
    out.close()
    Base64.getEncoder.encodeToString(bytes.toByteArray)
  }

  private def picture(): String = if (sc.isStopped) ofNothing else {
    val settled = watch.settle()
    val parked = Gate.parked
    val late = !settled || watch.planning.exists(!parked(_))
    val queries = live.map { l =>
      ("execution" -> l.execution) ~ ("description" -> l.description) ~ ("write" -> Watch.effect(l.qe).isDefined) ~
        ("parked" -> parked.contains(l.execution)) ~ ("result_running" -> (Watch.streams(l.qe) || l.view.writesFirst || l.view.resultRunning)) ~
        ("pipelines" -> l.view.pipelines.map(_.json))
    }
    compact(render(("taken_at_ms" -> System.currentTimeMillis()) ~ ("spark_version" -> sc.version) ~ ("refusal" -> refusal.fold[JValue](JNull)(JString(_))) ~
      ("stopped" -> false) ~ ("side_effects" -> watch.sideEffects) ~ ("events_late" -> late) ~ ("stages_finished" -> Gate.stagesFinished) ~ ("queries" -> queries)))
  }

  private def ofNothing: String = compact(render(("taken_at_ms" -> System.currentTimeMillis()) ~ ("spark_version" -> sc.version) ~ ("refusal" -> JNull) ~
    ("stopped" -> true) ~ ("side_effects" -> watch.sideEffects) ~ ("events_late" -> false) ~ ("stages_finished" -> Gate.stagesFinished) ~ ("queries" -> Seq.empty[JValue])))

  /** Whether the JVM finds what Python has put there. */
  def sees(uri: String): Boolean = { val path = new Path(uri); Blocks.fileSystem(path, sc.hadoopConfiguration).exists(path) }

  private def refusal: Option[String] =
    if (!ThisSpark.shuffleManager.isInstanceOf[SortShuffleManager]) {
      Some(s"the shuffle manager ${ThisSpark.shuffleManager.getClass.getName} keeps blocks where Godwit cannot read them; use Spark's own")
    } else if (sc.conf.get("spark.plugins", "").contains("SparkConnectPlugin")) Some("Spark Connect sessions are not resumable")
    else None

  /** Several exchanges side by side, each in a thread of its own; one that fails leaves the others alone. */
  def extract(request: String): String = {
    val json = parse(request)
    val (base, timeoutMs) = (text(json \ "base"), number(json \ "timeout_ms").get)
    // Ids are those of another picture: the plan may have changed since. Fingerprints stay.
    val views = (for (l <- live; p <- l.view.pipelines if p.state == "finished"; print <- p.fingerprint.toOption) yield print -> p).toMap
    val wanted = list(json \ "pipelines").map(p => (text(p \ "id"), text(p \ "fingerprint"))).zipWithIndex
    val extract = new Extract(sc, base, timeoutMs)
    val pool = Executors.newFixedThreadPool(math.max(1, math.min(4, wanted.size)))
    try {
      val futures = wanted.map { case ((id, print), i) => id -> pool.submit(task(extract, views.get(print), s"f$i")) }
      val deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs)
      val ended = futures.map { case (id, f) => id -> Try(f.get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS)).recover { case _: TimeoutException => throw new Late(timeoutMs) } }
      val (fragments, failed) = ended.partition(_._2.isSuccess)
      compact(render(
        ("fragments" -> fragments.collect { case (id, Success(f)) => described(id, f, base) }) ~
        ("failed" -> failed.collect { case (id, Failure(e)) =>
          ("pipeline" -> id) ~ ("reason" -> reason(e)) ~ ("refused" -> Option(e.getCause).exists(_.isInstanceOf[Refused]))
        })))
    } finally pool.shutdownNow()
  }

  /** Spark wraps what went wrong: the last cause says it. Of an aborted job the cause is in its first line. */
  private def reason(e: Throwable): String = {
    val causes = Iterator.iterate(e)(_.getCause).takeWhile(_ != null).toSeq
    causes.last match {
      case told @ (_: Refused | _: Late) => told.getMessage
      case other => other.toString.linesIterator.nextOption().getOrElse(other.getClass.getName)
    }
  }

  /** Should blocks be lost while they are written, the tasks that make them again need the settings of their query. */
  private def task(extract: Extract, view: Option[PipelineView], name: String): Callable[Fragment] = () => {
    sc.setLocalProperties(new Properties)
    view.flatMap(_.holder).collect { case s: ShuffleQueryStageExec => s.shuffle }.foreach(Fingerprint.told(_).foreach { case (key, value) => sc.setLocalProperty(key, value) })
    sc.setJobGroup(Watch.JobGroup, s"godwit: moving ${view.map(_.operator).getOrElse(name)}", interruptOnCancel = false)
    sc.setLocalProperty(SparkContext.SPARK_SCHEDULER_POOL, Watch.JobGroup) // where the program has chosen FAIR
    val found = for (v <- view; holder <- v.holder; print <- v.fingerprint.toOption)
      yield SQLExecution.withSQLConfPropagated(holder.session)(Precedence.first(sc, kills = true)(extract.rowsOf(holder, print, v.operator, name)))
    val fragment = found.getOrElse(throw new IllegalStateException("the pipeline is gone"))
    BlockReader.missing(fragment, sc.hadoopConfiguration).foreach { why =>
      throw new IOException(s"$why for the driver: the store must be one folder for all machines")
    }
    fragment
  }

  private def described(id: String, f: Fragment, base: String): JObject =
    ("pipeline" -> id) ~ ("fingerprint" -> f.fingerprint) ~ ("kind" -> f.kind) ~ ("label" -> f.label) ~ ("bytes" -> f.bytes) ~ ("rows" -> f.rows.fold[JValue](JNull)(JLong(_))) ~
      ("name" -> f.folder.stripPrefix(base + "/")) ~ ("descriptor" -> Base64.getEncoder.encodeToString(Fragment.encode(f)))

  def load(request: String): Unit = {
    Fallback.forget()
    Fragments.load(list(parse(request) \ "fragments").map { f =>
      Fragment.decode(Base64.getDecoder.decode(text(f \ "descriptor"))).copy(folder = text(f \ "folder"), madeOf = list(f \ "made_of").map(text).toSet)
    })
    // What is known to be lost before anything runs can be computed again with all that was made of it.
    for (f <- Fragments.inDoubt; reason <- BlockReader.missing(f, sc.hadoopConfiguration)) Fallback.tell(f, reason)
  }

  private def text(json: JValue): String = json match { case JString(s) => s; case other => throw new IllegalArgumentException(s"not a text: $other") }
  private def number(json: JValue): Option[Long] = json match { case JInt(n) => Some(n.toLong); case _ => None }
  private def list(json: JValue): Seq[JValue] = json match { case JArray(items) => items; case other => throw new IllegalArgumentException(s"not a list: $other") }

  def report(): String = compact(render(
    ("used" -> Fragments.usedFragments.map(f => ("fingerprint" -> f.fingerprint) ~ ("label" -> f.label))) ~
      ("fallbacks" -> Fragments.lostFragments.map { case (f, why) => ("fingerprint" -> f.fingerprint) ~ ("label" -> f.label) ~ ("reason" -> why) })))
}
