package org.apache.spark.sql.godwit

import org.apache.hadoop.fs.Path

import org.apache.spark.SparkContext
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.internal.SQLConf

/**
 * Code that runs for the first time is slow, and a standby's first query is the one that matters. So it moves a
 * small one out and in again, as a whole: tables are scanned, joined, grouped and sorted, what the stages have
 * made goes to the store, and the query is planned and run once more on that.
 */
class Rehearsal(present: SparkSession, base: String) {
  private val session = present.newSession()
  session.conf.set(SQLConf.SHUFFLE_PARTITIONS.key, "2")
  private val sc = session.sparkContext
  private val facts = s"$base/facts"
  private val names = s"$base/names"

  private val query =
    s"""WITH sums AS (
       |  SELECT f.day, f.key, n.name, sum(f.price * (1 - f.discount)) AS total, avg(f.amount) AS mean, count(*) AS n
       |  FROM parquet.`$facts` f JOIN parquet.`$names` n ON f.key = n.key
       |  WHERE f.amount > 1 AND n.name LIKE 'n%' AND f.day BETWEEN DATE'2000-01-01' AND DATE'2000-12-01'
       |  GROUP BY f.day, f.key, n.name)
       |SELECT s.name, s.total, t.total AS later, rank() OVER (PARTITION BY s.name ORDER BY s.total) AS place,
       |  CASE WHEN s.n > (SELECT avg(n) FROM sums) THEN substr(s.name, 2) ELSE coalesce(x.text, '-') END AS word
       |FROM sums s
       |JOIN sums t ON s.key = t.key AND s.day = t.day - 1
       |LEFT JOIN parquet.`$facts` x ON x.id = s.key
       |WHERE EXISTS (SELECT 1 FROM parquet.`$facts` e WHERE e.key = s.key AND e.amount > 5)
       |UNION ALL
       |SELECT name, total, mean, n, CAST(day AS STRING) FROM sums WHERE key IN (1, 2, 3)
       |ORDER BY name, total, later, place, word LIMIT 100""".stripMargin

  def run(): Unit = try {
    sc.setJobGroup(Rehearsal.JobGroup, "godwit: rehearsing a move", interruptOnCancel = true)
    tables()
    (1 to Rehearsal.Rounds).takeWhile(_ => !Rehearsal.stopped).foreach { round =>
      val fragments = extracted(s"$base/$round")
      use(fragments)
      session.sql(query).collect()
      use(Nil)
    }
  } finally {
    sc.clearJobGroup()
    use(Nil)
    Gate.forgetStages()
    val folder = new Path(base)
    folder.getFileSystem(sc.hadoopConfiguration).delete(folder, true)
  }

  private def use(fragments: Seq[Fragment]): Unit = { Fallback.forget(); Fragments.load(fragments) }

  private def tables(): Unit = {
    session.range(0, Rehearsal.Rows, 1, 2).selectExpr("id", "id % 500 AS key", "DATE'2000-01-01' + CAST(id % 365 AS INT) AS day",
      "CAST(id % 100 AS DECIMAL(12, 2)) AS price", "CAST(0.05 AS DECIMAL(12, 2)) AS discount", "CAST(id % 7 AS DOUBLE) AS amount",
      "concat('text ', id) AS text").write.parquet(facts)
    session.range(500).selectExpr("id AS key", "concat('n', id) AS name").write.parquet(names)
  }

  /** The query runs to its end, and leaves its stages behind. */
  private def extracted(folder: String): Seq[Fragment] = {
    val rows = session.sql(query)
    rows.collect()
    val view = new Snapshot(0, rows.queryExecution.executedPlan, session, new Watch(sc))
    val extract = new Extract(sc, folder, Rehearsal.TimeoutMs)
    for (pipeline <- view.pipelines; holder <- pipeline.holder; print <- pipeline.fingerprint.toOption)
      yield extract.rowsOf(holder, print, pipeline.operator, pipeline.id)
  }
}

object Rehearsal {
  private val JobGroup = "godwit-rehearsal"
  @volatile private var stopped = false

  /** Soon: what it runs now is cancelled, and nothing begins any more. */
  def stop(): Unit = {
    stopped = true
    SparkContext.getActive.foreach(_.cancelJobGroupAndFutureJobs(JobGroup, "the job is to go on now"))
  }

  private val Rows = 5000L
  private val Rounds = 2
  private val TimeoutMs = 60000L
}
