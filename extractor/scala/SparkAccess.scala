package org.apache.spark.sql.execution {

  import scala.concurrent.ExecutionContextExecutorService

  import org.apache.spark.sql.execution.exchange.BroadcastExchangeExec

  /** Broadcasts are built on Spark's own threads for them, which it keeps within its package. */
  object BroadcastThreads {
    def context: ExecutionContextExecutorService = BroadcastExchangeExec.executionContext
  }

  package adaptive {
    /** A stage's result holder is what reused instances of the stage share. */
    object StageAccess {
      def identity(stage: QueryStageExec): AnyRef = stage.resultOption
    }
  }

  package joins {

    import org.apache.spark.sql.catalyst.InternalRow
    import org.apache.spark.sql.godwit.Refused

    /**
     * The rows of a built broadcast. A hashed relation has dropped rows with null keys and keeps one row per
     * key where that is all its join asks for: its rows stand for this broadcast only, never for the plan beneath it.
     */
    object BroadcastRows {
      def apply(relation: Any): Iterator[InternalRow] = relation match {
        case rows: Array[InternalRow @unchecked] => rows.iterator
        case HashedRelationWithAllNullKeys | EmptyHashedRelation => throw new Refused("an empty or all-null broadcast")
        case r: LongHashedRelation =>
          val reader = r.asReadOnlyCopy()
          reader.keys().map(_.getLong(0)).toSeq.distinct.iterator.flatMap(k => reader.get(k)).map(_.copy())
        case r: HashedRelation =>
          val reader = r.asReadOnlyCopy()
          reader.keys().map(_.copy()).toSeq.distinct.iterator.flatMap(k => reader.get(k)).map(_.copy())
        case other => throw new Refused(s"a broadcast of ${other.getClass.getSimpleName}")
      }
    }
  }
}
