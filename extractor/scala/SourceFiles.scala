package org.apache.spark.sql.godwit

import org.apache.spark.SparkException
import org.apache.spark.sql.execution.{FileSourceScanExec, SparkPlan}
import org.apache.spark.sql.execution.adaptive.{AdaptiveSparkPlanExec, QueryStageExec}
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec

/**
 * Stored rows that are lost are computed again in the middle of a query, from files that may have been replaced since
 * the query was planned. The rows of two states of a table must not meet in one answer: then the query fails.
 */
object SourceFiles {
  def check(plan: SparkPlan): Unit = scans(plan).foreach { scan =>
    for (files <- Fingerprint.filesOf(scan); now <- Fingerprint.filesNow(scan) if states(now) != states(files)) {
      throw changed(s"the list of files of ${scan.relation.location.rootPaths.mkString(", ")} has changed", null)
    }
    for (files <- Fingerprint.filesOf(scan); file <- files) {
      val now = try file.getPath.getFileSystem(scan.session.sparkContext.hadoopConfiguration).getFileStatus(file.getPath) catch {
        case e: java.io.FileNotFoundException => throw changed(s"${file.getPath} is gone", e)
      }
      if (now.getLen != file.getLen || now.getModificationTime != file.getModificationTime) throw changed(s"${file.getPath} has changed", null)
    }
  }

  private def states(files: Seq[FileStatusWithMetadata]) = files.map(f => (f.getPath, f.getLen, f.getModificationTime)).toSet

  private def changed(what: String, cause: Throwable): SparkException =
    new SparkException(s"$what since the query was planned: run it again", cause)

  private def scans(p: SparkPlan): Seq[FileSourceScanExec] = p match {
    case f: FileSourceScanExec => Seq(f)
    case _: Stored | _: QueryStageExec => Nil // their rows are there
    case r: ReusedExchangeExec => scans(r.child)
    case a: AdaptiveSparkPlanExec => scans(a.initialPlan)
    case other => (other.children ++ other.subqueries).flatMap(scans)
  }
}
