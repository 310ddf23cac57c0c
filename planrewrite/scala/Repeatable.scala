package org.apache.spark.sql.godwit

import org.apache.spark.sql.catalyst.expressions.{Expression, PythonFuncExpression}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.adaptive.{AdaptiveSparkPlanExec, QueryStageExec}
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec
import org.apache.spark.sql.execution.window.WindowExec

/**
 * Whether another run gives the very same values: not if it adds floating-point numbers, or picks one of several
 * values that tie, since rows reach those in another order; nor if it calls Python, which may draw a random number
 * without a word to Spark. What was made of the one run must not meet what is made of the other.
 */
private[godwit] object Repeatable {
  def apply(p: SparkPlan): Boolean = p match {
    case s: Stored => Repeatable(s.replaced)
    case s: QueryStageExec => Repeatable(s.plan)
    case r: ReusedExchangeExec => Repeatable(r.child)
    case a: AdaptiveSparkPlanExec => Repeatable(a.initialPlan)
    case c: InMemoryTableScanExec => Repeatable(c.relation.cacheBuilder.cachedPlan)
    case _ if p.expressions.exists(_.exists(_.isInstanceOf[PythonFuncExpression])) => false
    case _: BaseAggregateExec | _: WindowExec if p.expressions.exists(_.exists(adds)) => false
    case a: BaseAggregateExec if a.groupingExpressions.exists(e => Ties.unnormalized(e.dataType)) => false
    case other => (other.children ++ other.subqueries).forall(Repeatable(_))
  }

  private def adds(e: Expression): Boolean = e match {
    case f: AggregateFunction => (f +: f.children).exists(e => Ties.unequal(e.dataType))
    case _ => false
  }
}
