package org.apache.spark.sql.godwit

import java.util.{Collections, IdentityHashMap}

import scala.util.control.NonFatal

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.adaptive._
import org.apache.spark.sql.execution.columnar.{CacheAccess, CachedRDDBuilder, InMemoryRelation, InMemoryTableScanExec}
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

/**
 * One pass over a plan.
 *
 * A query must meet each value in one edition. What was made of values that another run gives otherwise stands for
 * nothing in a query that computes those values anew: all of the plan is looked at, with its subqueries, which are planned
 * before it. They have taken what they found, and are told to compute it after all.
 */
private class Substitution(session: SparkSession) {
  private val prints = new Fingerprint(session)
  private var unfit = Set[String]()
  private val placed = Collections.newSetFromMap(new IdentityHashMap[SparkPlan, java.lang.Boolean])

  def replace(plan: SparkPlan): SparkPlan = {
    val made = replaced(plan)
    val mixed = if (Fragments.anyInDoubt) inTwoEditions(made) else Nil
    if (mixed.isEmpty) {
      made.foreach { case s: Stored => Fragments.used(s.fragment); case _ => }
      made
    } else {
      val (here, elsewhere) = mixed.partition(s => placed.contains(s.replaced))
      unfit ++= here.map(_.fragment.fingerprint)
      elsewhere.foreach(s => Substitute.revoke(s.replaced))
      replace(plan)
    }
  }

  private def replaced(p: SparkPlan): SparkPlan = p match {
    case e: ShuffleExchangeExec =>
      stored(e).fold(below(e))(f => standIn(e, f, leaf => StoredShuffleExec(f, e.outputPartitioning, e.shuffleOrigin, e.advisoryPartitionSize, leaf)(e)))
    case e: BroadcastExchangeExec =>
      stored(e).fold(below(e))(f => standIn(e, f, leaf => StoredBroadcastExec(f, e.mode, leaf)(e)))
    case stage: QueryStageExec => stage
    case other => below(other)
  }

  private def below(p: SparkPlan): SparkPlan = p.mapChildren(replaced)

  private def stored(e: Exchange): Option[Fragment] =
    prints.exchange(e).toOption.flatMap(Fragments.get).filter(f => f.fields == e.output.size && !unfit(f.fingerprint))

  private def standIn(e: Exchange, fragment: Fragment, node: SparkPlan => SparkPlan): SparkPlan = {
    val leaf = StoredLeafExec(fragment.fingerprint, e.child.output)
    Substitute.link(e).foreach(leaf.setLogicalLink)
    val replacement = node(leaf)
    replacement.copyTagsFrom(e)
    placed.add(e)
    replacement
  }

  private def inTwoEditions(plan: SparkPlan): Seq[Stored] = {
    val (standIns, others) = met(plan).partition { case s: Stored => !gone(s); case _ => false }
    val anew = others.flatMap(computed).toSet
    standIns.collect { case s: Stored if s.fragment.madeOf.exists(anew) => s }
  }

  private def computed(p: SparkPlan): Option[String] = p match {
    case s: Stored => Some(s.fragment.fingerprint)
    case e: Exchange => prints.exchange(e).toOption
    case c: InMemoryTableScanExec => new Fingerprint(c.session).cache(c.relation.cacheBuilder.cachedPlan).toOption
    case _ => None
  }

  /** The exchanges and cached tables that the query reads. Nothing beneath a stored one runs. */
  private def met(p: SparkPlan): Seq[SparkPlan] = p match {
    case s: QueryStageExec => met(s.plan)
    case a: AdaptiveSparkPlanExec => met(a.executedPlan)
    case r: ReusedExchangeExec => met(r.child)
    case r: ReusedSubqueryExec => met(r.child)
    case s: Stored if gone(s) => s +: beneath(s.replaced)
    case s: Stored => Seq(s)
    case c: InMemoryTableScanExec => c.relation.cacheBuilder.cachedPlan match { case s: Stored if !gone(s) => Nil; case _ => Seq(c) }
    case e: Exchange => e +: beneath(e)
    case other => beneath(other)
  }

  private def beneath(p: SparkPlan): Seq[SparkPlan] = (p.children ++ p.subqueries).flatMap(met)

  /** It was replaced, and is computed all the same. */
  private def gone(s: Stored): Boolean = Substitute.isRevoked(s.replaced) || Fragments.get(s.fragment.fingerprint).isEmpty
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
  private val Revoked = TreeNodeTag[Boolean]("godwit.revoked")

  /** The exchange is to run, although it was replaced: the replacement may be in a plan that is finished. */
  def revoke(replaced: SparkPlan): Unit = replaced.setTagValue(Revoked, true)
  def isRevoked(replaced: SparkPlan): Boolean = replaced.getTagValue(Revoked).contains(true)

  /** The logical node that an exchange stands for, found where AQE itself looks for it. */
  def link(e: SparkPlan): Option[LogicalPlan] =
    e.getTagValue(AdaptiveSparkPlanExec.TEMP_LOGICAL_PLAN_TAG).orElse(e.logicalLink).orElse(e.collectFirst {
      case p if p.getTagValue(AdaptiveSparkPlanExec.TEMP_LOGICAL_PLAN_TAG).isDefined =>
        p.getTagValue(AdaptiveSparkPlanExec.TEMP_LOGICAL_PLAN_TAG).get
      case p if p.logicalLink.isDefined => p.logicalLink.get
    })
}
