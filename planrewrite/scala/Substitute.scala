package org.apache.spark.sql.godwit

import scala.util.control.NonFatal

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.adaptive._
import org.apache.spark.sql.execution.columnar.{CacheAccess, CachedRDDBuilder, InMemoryRelation}
import org.apache.spark.sql.execution.exchange._

/**
 * The new driver plans the same query from scratch; what the old one had finished is in the store.
 *
 * AQE runs this rule on the initial plan and at every re-planning: the topmost exchange whose fingerprint is
 * stored becomes a node that AQE takes for an exchange which is materialized already. A miss only recomputes.
 */
case class Substitute(session: SparkSession) extends Rule[SparkPlan] {

  override def apply(plan: SparkPlan): SparkPlan = {
    try {
      Fingerprint.remember(plan, session)
      if (Fragments.isEmpty) plan else new Substitution(session).replace(plan)
    } catch {
      case NonFatal(e) =>
        System.err.println(s"godwit: the stored state is not used for this plan, it is computed from source: $e")
        plan
    }
  }

}

/** One pass over a plan. */
private class Substitution(session: SparkSession) {
  private val prints = new Fingerprint(session)
  private lazy val here = Shape.here(session.sparkContext)

  def replace(p: SparkPlan): SparkPlan = p match {
    case e: ShuffleExchangeExec =>
      stored(e).fold(below(e))(f => standIn(e, f, leaf => StoredShuffleExec(f, e.outputPartitioning, e.shuffleOrigin, e.advisoryPartitionSize, leaf)(e)))
    case e: BroadcastExchangeExec =>
      stored(e).fold(below(e))(f => standIn(e, f, leaf => StoredBroadcastExec(f, e.mode, leaf)(e)))
    case stage: QueryStageExec => stage
    case other => below(other)
  }

  private def below(p: SparkPlan): SparkPlan = p.mapChildren(replace)

  private def stored(e: Exchange): Option[Fragment] =
    prints.exchange(e).toOption.flatMap(Fragments.get).filter(f => f.fields == e.output.size && f.query.forall(here.contains))

  private def standIn(e: Exchange, fragment: Fragment, node: SparkPlan => SparkPlan): SparkPlan = {
    val leaf = StoredLeafExec(fragment.fingerprint, e.child.output)
    Substitute.link(e).foreach(leaf.setLogicalLink)
    val replacement = node(leaf)
    replacement.copyTagsFrom(e)
    Fragments.used(fragment)
    replacement
  }
}

/**
 * A cached table whose rows are in the store is built from them. All queries of the program share one table, so what
 * replaces it is remembered with the plan that it would have been built from.
 */
case class SubstituteCaches() extends Rule[LogicalPlan] {
  override def apply(plan: LogicalPlan): LogicalPlan = try plan.transform {
    case r: InMemoryRelation =>
      Fingerprint.rememberFiles(r.cacheBuilder.cachedPlan)
      SubstituteCaches.stored(r.cacheBuilder).fold(r)(InMemoryRelation(r.output, _, Nil, r.statsOfPlanToCache))
  } catch {
    case NonFatal(e) =>
      System.err.println(s"godwit: the stored rows of cached tables are not used for this plan, they are computed from source: $e")
      plan
  }
}

object SubstituteCaches {
  private val Replacement = TreeNodeTag[CachedRDDBuilder]("godwit.replacement")

  /** Whoever has begun with the replacement stays with it, even if its rows are lost: there is one table. */
  private def stored(builder: CachedRDDBuilder): Option[CachedRDDBuilder] = synchronized {
    builder.cachedPlan.getTagValue(Replacement).orElse(found(builder).map { fragment =>
      val replacement = builder.copy(cachedPlan = StoredCacheExec(fragment, builder.cachedPlan.output)(builder.cachedPlan))
      builder.cachedPlan.setTagValue(Replacement, replacement)
      Fragments.used(fragment)
      replacement
    })
  }

  private def found(builder: CachedRDDBuilder): Option[Fragment] = {
    val plan = builder.cachedPlan
    val free = !Fragments.isEmpty && !plan.isInstanceOf[Stored] && CacheAccess.buffers(builder).isEmpty && !builder.supportsColumnarInput
    val fragment = if (free) new Fingerprint(plan.session).cache(plan).toOption.flatMap(Fragments.get) else None
    fragment.filter(_.fields == plan.output.size)
  }
}

object Substitute {
  /** The logical node that an exchange stands for, found where AQE itself looks for it. */
  def link(e: SparkPlan): Option[LogicalPlan] =
    e.getTagValue(AdaptiveSparkPlanExec.TEMP_LOGICAL_PLAN_TAG).orElse(e.logicalLink).orElse(e.collectFirst {
      case p if p.getTagValue(AdaptiveSparkPlanExec.TEMP_LOGICAL_PLAN_TAG).isDefined =>
        p.getTagValue(AdaptiveSparkPlanExec.TEMP_LOGICAL_PLAN_TAG).get
      case p if p.logicalLink.isDefined => p.logicalLink.get
    })
}
