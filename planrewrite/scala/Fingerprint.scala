package org.apache.spark.sql.godwit

import java.util.IdentityHashMap

import scala.util.control.NonFatal

import org.apache.spark.sql.catalyst.expressions.{Left => _, Right => _, _}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.plans.JoinType
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.adaptive._
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.execution.columnar.{CachedRDDBuilder, InMemoryTableScanExec}
import org.apache.spark.sql.execution.datasources.{CatalogFileIndex, FileStatusWithMetadata, InMemoryFileIndex, PartitionDirectory}
import org.apache.spark.sql.execution.exchange._
import org.apache.spark.sql.execution.joins._
import org.apache.spark.sql.execution.python._
import org.apache.spark.sql.execution.window.{WindowExec, WindowGroupLimitExec}
import org.apache.spark.sql.types.{DataType, DoubleType, FloatType, StringType, UserDefinedType}

/**
 * What an exchange holds, in 64 hex digits: equal in two drivers only if both plans give the same rows.
 *
 * AQE changes strategies in the middle of a query, so what cannot change the set of rows is not written
 * down: exchanges, sorts, the kind of join or aggregate, codegen. That is only right beneath operators
 * which do not look at order or layout (`rows`). Beneath the others (samples, limits, ids, row_number ...)
 * the exact order and layout of the input is written down (`layout`), which exists over scans only: above an
 * exchange rows arrive in any order, and the operator is refused.
 *
 * One object serves one pass over a plan: it remembers the digest of every node it has met.
 */
class Fingerprint(session: SparkSession) extends Encoding {
  private val conf = session.sessionState.conf
  private lazy val settings = Settings.of(session)
  protected lazy val shipped: String = Shipped.digest(session.sparkContext)
  /** Of what is being read: who asks may be another thread than the query's. */
  protected var told: Map[String, String] = Map.empty
  protected lazy val environment: Map[String, String] = Settings.environment(session.sparkContext)
  private val rowsMemo = new IdentityHashMap[SparkPlan, Either[String, String]]

  /** Left: why not. A plan does not change once it is planned, so it is read once, however often it is asked for. */
  def exchange(e: Exchange): Either[String, String] = {
    val planned = Fingerprint.planned(e).getOrElse(new Fingerprint.Planned(e, settings, Told.here(session)))
    if (planned.print == null) planned.print = hearing(planned.told)(read(planned.exchange, sha(planned.settings)))
    // Some settings count when a plan is made, others when it runs.
    if (planned.settings != settings) Left("a plan that was made under other settings than those of now")
    else if (Fingerprint.openedOtherwise(planned.opened, session)) Left(Fingerprint.OpenedOtherwise)
    else CacheBuilds.problem(planned.caches).toLeft(()).flatMap(_ => planned.print)
  }

  private def read(e: Exchange, settings: String): Either[String, String] = try e match {
    case s: ShuffleExchangeExec =>
      Right(sha("SHUFFLE" + arguments(s, value(s.outputPartitioning)) + s.shuffleOrigin + types(s) + settings + rows(s.child)))
    case b: BroadcastExchangeExec =>
      Right(sha("BROADCAST" + arguments(b, value(b.mode)) + types(b) + settings + rows(b.child)))
    case other => Left(s"an exchange of ${other.nodeName}")
  } catch {
    case r: Refused => Left(r.getMessage)
    case NonFatal(e) => Left(s"a plan that could not be read: $e")
  }

  /** A cached table keeps its rows in the order in which they were made, and a program may rely on that. */
  def cache(plan: SparkPlan): Either[String, String] =
    if (Fingerprint.openedOtherwise(Fingerprint.opened(plan), plan.session)) Left(Fingerprint.OpenedOtherwise) else cacheAsPlanned(plan)

  private def cacheAsPlanned(plan: SparkPlan): Either[String, String] = plan.getTagValue(Fingerprint.OfCache).getOrElse {
    val print = try Right(sha("CACHE" + types(plan) + cached(plan) + order(plan))) catch {
      case r: Refused => Left(r.getMessage)
      case NonFatal(e) => Left(s"a plan that could not be read: $e")
    }
    plan.setTagValue(Fingerprint.OfCache, print)
    print
  }

  /** The rows of a cached table, and the settings under which it was planned: another session's, perhaps. */
  private def cached(plan: SparkPlan): String = plan match {
    case s: StoredCacheExec => cached(s.replaced)
    case _ => q(Settings.of(plan.session)) + hearing(Map.empty)(rows(plan))
  }

  private def hearing[T](words: Map[String, String])(read: => T): T = {
    val outer = told
    told = words
    try read finally told = outer
  }

  /** What the program said about the order and the partitions of rows; the rest Spark may do otherwise each time. */
  private def order(p: SparkPlan): String = p match {
    case a: AdaptiveSparkPlanExec => order(a.inputPlan)
    case s: StoredCacheExec => order(s.replaced)
    case c: InMemoryTableScanExec => q(order(c.relation.cacheBuilder.cachedPlan))
    case s: SortExec => q(arguments(s, all(s.sortOrder) + s.global)) + order(s.child)
    case s: ShuffleExchangeExec => q(arguments(s, value(s.outputPartitioning))) + order(s.child)
    case other => q(other.nodeName) + other.children.map(order).mkString("[", "", "]")
  }

  /**
   * The sorts that the program asked for beneath an operator: a Python function of whole groups sees their rows in
   * the order in which they come. Sorts that Spark adds by itself are not among them: AQE may do without.
   */
  private def sorted(p: SparkPlan): String = p match {
    case s: QueryStageExec => sorted(s.plan)
    case a: AdaptiveSparkPlanExec => sorted(a.initialPlan)
    case s: Stored => sorted(s.replaced)
    case r: ReusedExchangeExec => sorted(r.child)
    case e: Exchange => sorted(Fingerprint.planned(e).fold(e)(_.exchange).child)
    case c: InMemoryTableScanExec => sorted(c.relation.cacheBuilder.cachedPlan)
    case s: SortExec if s.getTagValue(SparkPlan.LOGICAL_PLAN_TAG).isDefined => q(arguments(s, all(s.sortOrder) + s.global)) + sorted(s.child)
    case other if other.children.size == 1 => sorted(other.children.head)
    case other => other.children.map(c => q(sorted(c))).mkString("[", "", "]")
  }

  /** Text about a node itself, in which an attribute is a position of its input or something the node makes. */
  private def arguments(p: SparkPlan, text: => String): String = {
    val input = p.children.flatMap(_.output).zipWithIndex.map { case (a, i) => a.exprId -> s"in $i" }
    val made = p.output.zipWithIndex.map { case (a, i) => a.exprId -> s"out $i" }
    val results = p.expressions.flatMap(_.collect {
      case a: AggregateExpression => a.resultId
      case f: PythonFuncExpression => f.resultId
    }).zipWithIndex.map { case (id, i) => id -> s"result $i" }
    q(within((made ++ results ++ aggregated(p) ++ input).toMap)(text))
  }

  /** An aggregate's results and, where it is partial, its functions' buffers have ids of their own. */
  private def aggregated(p: SparkPlan): Seq[(ExprId, String)] = p match {
    case a: BaseAggregateExec =>
      val buffers = for {
        (e, i) <- a.aggregateExpressions.zipWithIndex
        list <- Seq(e.aggregateFunction.aggBufferAttributes, e.aggregateFunction.inputAggBufferAttributes)
        (b, j) <- list.zipWithIndex
      } yield b.exprId -> s"buffer $i.$j"
      buffers ++ a.aggregateAttributes.zipWithIndex.map { case (r, i) => r.exprId -> s"result $i" }
    case _ => Nil
  }

  private def types(p: SparkPlan): String = all(p.output.map(_.dataType))

  /** The digest of a plan's rows as a multiset. */
  private def rows(plan: SparkPlan): String = {
    val p = solid(plan)
    val known = rowsMemo.get(p)
    val result = if (known != null) known else {
      val fresh = p match { case e: Exchange => beneath(e); case _ => digest(p) }
      rowsMemo.put(p, fresh)
      fresh
    }
    result.fold(why => throw new Refused(why), identity)
  }

  private def digest(p: SparkPlan): Either[String, String] = try Right(sha(rows0(p))) catch { case r: Refused => Left(r.getMessage) }

  /** An exchange has the rows of its input. It outlives the plan around it, which AQE makes anew again and again. */
  private def beneath(e: Exchange): Either[String, String] = {
    def read(exchange: Exchange) = try Right(rows(exchange.children.head)) catch { case r: Refused => Left(r.getMessage) }
    Fingerprint.planned(e).fold[Either[String, String]](read(e)) { planned =>
      if (planned.rows == null) planned.rows = hearing(planned.told)(read(planned.exchange))
      planned.rows
    }
  }

  /** The first operator from here that can change the set of rows, or an exchange. */
  private def solid(p: SparkPlan): SparkPlan = p match {
    case s: ExchangeQueryStageExec => solid(s.plan)
    case r: ReusedExchangeExec => solid(r.child)
    case t: TableCacheQueryStageExec => solid(t.plan)
    case a: AdaptiveSparkPlanExec => solid(a.initialPlan)
    case s: StoredCacheExec => solid(s.replaced) // exchanges that are stored know what they stand for
    case _: WholeStageCodegenExec | _: InputAdapter | _: AQEShuffleReadExec | _: SortExec | _: ColumnarToRowExec |
        _: RowToColumnarExec | _: CoalesceExec | _: SubqueryExec => solid(p.children.head)
    case other => other
  }

  private def rows0(p: SparkPlan): String = p match {
    case _: ProjectExec | _: FilterExec | _: ExpandExec | _: GenerateExec =>
      node(p, if (p.expressions.exists(LayoutSensitive.within)) layout else rows)
    // Spark folds projections into aggregates and others, above whatever they read.
    case _ if p.expressions.exists(LayoutSensitive.within) =>
      throw new Refused(s"a value that depends on its row's place, made by ${p.nodeName}")
    case j: ShuffledJoin => join(j.joinType, j.leftKeys, j.rightKeys, j.condition, nullAware = false, j)
    case j: BroadcastHashJoinExec => join(j.joinType, j.leftKeys, j.rightKeys, j.condition, j.isNullAwareAntiJoin, j)
    case j: BroadcastNestedLoopJoinExec => join(j.joinType, Nil, Nil, j.condition, nullAware = false, j)
    case j: CartesianProductExec => join(org.apache.spark.sql.catalyst.plans.Inner, Nil, Nil, j.condition, nullAware = false, j)
    case a: BaseAggregateExec =>
      if (a.isStreaming) throw new Refused("a streaming aggregate")
      val input = if (LayoutSensitive.aggregates(a.aggregateExpressions)) layout(a.child) else rows(a.child)
      "AGGREGATE" + arguments(a, all(a.groupingExpressions) + all(a.aggregateExpressions) + all(a.resultExpressions)) +
        a.initialInputBufferOffset + input
    case _: UnionExec => node(p, rows)
    case w: WindowExec =>
      node(w, if (ordered(w.windowExpression, w.partitionSpec, w.orderSpec, w.child)) layout else rows)
    case w: ArrowWindowPythonExec =>
      sorted(w) + node(w, if (ordered(w.windowExpression, w.partitionSpec, w.orderSpec, w.child)) layout else rows)
    case w: WindowGroupLimitExec =>
      val ordered = w.rankLikeFunction.isInstanceOf[RowNumber] && !total(w.partitionSpec ++ w.orderSpec.map(_.child), w.child)
      node(w, if (ordered) layout else rows)
    case t: TakeOrderedAndProjectExec if total(t.sortOrder.map(_.child), t.child) => node(t, rows)
    // Both gather the rows of all partitions, in whatever order they arrive.
    case _: TakeOrderedAndProjectExec | _: CollectLimitExec => throw new Refused(s"${p.nodeName}, which leaves open which rows it takes")
    case l: LimitExec =>
      val settled = l.child match { case s: SortExec => s.global && total(s.sortOrder.map(_.child), s.child); case _ => false }
      node(l, if (settled) c => sha(node(c, rows)) else layout)
    case e: EvalPythonExec if Fingerprint.rowByRow(e) => node(e, rows)
    case _: EvalPythonExec | _: SampleExec => node(p, layout)
    case _: MapInPandasExec | _: MapInArrowExec => names(p) + node(p, layout)
    case _: FlatMapGroupsInPandasExec | _: FlatMapGroupsInArrowExec | _: FlatMapCoGroupsInPandasExec => names(p) + sorted(p) + node(p, rows)
    case _: ArrowAggregatePythonExec => sorted(p) + node(p, rows)
    case leaf if leaf.children.isEmpty => source(leaf)
    case other => throw new Refused(s"the operator ${other.nodeName}")
  }

  /** The digest of a plan's rows with their order and partitions. */
  private def layout(p: SparkPlan): String = sha("LAYOUT" + (p match {
    case _: WholeStageCodegenExec | _: InputAdapter | _: ColumnarToRowExec => layout(p.children.head)
    case _: ProjectExec | _: FilterExec | _: ExpandExec | _: GenerateExec | _: SampleExec | _: LocalLimitExec => node(p, layout)
    // Ties come in another order where the sort has to spill.
    case s: SortExec if total(s.sortOrder.map(_.child), s.child) => node(p, layout)
    case e: EvalPythonExec => node(e, layout)
    case _: MapInPandasExec | _: MapInArrowExec => names(p) + node(p, layout)
    case _: InMemoryTableScanExec | _: TableCacheQueryStageExec => throw new Refused("an operator that depends on row order above a cached table")
    case leaf if leaf.children.isEmpty =>
      val switches = leaf.productIterator.collect { case b: Boolean => b }
      val order = leaf match { case f: FileSourceScanExec => listed(f).flatMap(_.files).map(s => q(s.getPath.toString)).mkString; case _ => "" }
      source(leaf) + sha(order) + switches.mkString(",") + conf.filesMinPartitionNum.getOrElse(session.leafNodeDefaultParallelism)
    case other => throw new Refused(s"an operator that depends on row order above ${other.nodeName}")
  }))

  /** A Python function of whole frames sees its columns' names. */
  private def names(p: SparkPlan): String = all(p.children.map(_.output.map(_.name)))

  /** Whether a window's values depend on the order of rows that its keys leave open. */
  private def ordered(values: Seq[NamedExpression], partition: Seq[Expression], order: Seq[SortOrder], child: SparkPlan): Boolean =
    LayoutSensitive.window(values) && !total(partition ++ order.map(_.child), child)

  private def node(p: SparkPlan, input: SparkPlan => String): String = {
    val children = p.children
    val own = p.productIterator.filter {
      case c: SparkPlan => !children.exists(_ eq c)
      case s: Seq[_] => s.isEmpty || !s.forall { case c: SparkPlan => children.exists(_ eq c); case _ => false }
      case _ => true
    }
    q(p.getClass.getName) + arguments(p, all(own.toSeq)) + children.map(input).mkString
  }

  private def join(joinType: JoinType, left: Seq[Expression], right: Seq[Expression], condition: Option[Expression],
      nullAware: Boolean, p: SparkPlan): String =
    "JOIN" + value(joinType) + nullAware + arguments(p, unordered(left.zip(right)) + q(value(condition))) + p.children.map(rows).mkString

  /** Ties under these keys are equal rows, so that their order shows nowhere. Of some types unequal values tie, like 0.0 and -0.0. */
  private def total(keys: Seq[Expression], child: SparkPlan): Boolean =
    child.outputSet.subsetOf(AttributeSet(keys.collect { case a: AttributeReference => a })) &&
      !child.output.exists(a => Ties.unequal(a.dataType))

  private def source(leaf: SparkPlan): String = leaf match {
    case f: FileSourceScanExec => files(f)
    case c: InMemoryTableScanExec =>
      val columns = c.relation.output.zipWithIndex.map { case (a, i) => a.exprId -> s"in $i" }.toMap
      "CACHED" + q(within(columns)(all(c.attributes) + unordered(c.predicates))) + cached(c.relation.cacheBuilder.cachedPlan)
    case r: RangeExec => "RANGE" + s"${r.start},${r.end},${r.step},${r.numSlices}"
    case l: LocalTableScanExec => "LOCAL" + types(l) + l.rows.map(r => q(row(r, l.output.map(_.dataType)))).mkString
    case _: OneRowRelationExec => "ONE"
    case e: EmptyRelationExec => "EMPTY" + types(e)
    case other => throw new Refused(s"the source ${other.nodeName}, which has no version")
  }

  private def listed(f: FileSourceScanExec): Seq[PartitionDirectory] =
    f.getTagValue(Fingerprint.Listing).orElse(Fingerprint.listing(f)).getOrElse(
      throw new Refused(s"files listed by ${f.relation.location.getClass.getSimpleName}, which has no version"))

  private def files(f: FileSourceScanExec): String = {
    val relation = f.relation
    val format = relation.fileFormat.getClass.getName
    if (!format.startsWith("org.apache.spark.sql.")) throw new Refused(s"files read by $format, which has no version")
    if (f.output.exists(Fingerprint.ofBlock)) throw new Refused("the place of a row's block in its file, which depends on how files are split")
    val (dynamic, static) = f.partitionFilters.partition(_.exists(_.isInstanceOf[PlanExpression[_]]))
    val values = relation.partitionSchema.map(_.dataType)
    val read = listed(f).flatMap(d => d.files.map(s => s"${row(d.values, values)}|${s.getPath}|${s.getLen}|${s.getModificationTime}")).sorted
    val columns = (f.dataFilters ++ f.partitionFilters).flatMap(_.references) ++ f.output
    val conditions = within(columns.map(a => a.exprId -> s"column ${a.name}").toMap) {
      all(f.output) + unordered(static) + unordered(dynamic) + unordered(f.dataFilters)
    }
    "FILES" + q(format) + sha(read.map(q).mkString) + q(value(relation.options)) +
      q(value(f.requiredSchema)) + q(value(relation.partitionSchema)) + q(value(relation.dataSchema)) + q(conditions) +
      s"${f.optionalBucketSet.map(_.iterator.toSeq)},${f.optionalNumCoalescedBuckets},${f.disableBucketedScan}"
  }

  override protected def subquery(plan: Any): String = plan match {
    case s: SubqueryAdaptiveBroadcastExec => q(s"${s.indices}") + arguments(s, all(s.buildKeys)) + rows(s.child)
    case s: SubqueryBroadcastExec => q(s"${s.indices}") + arguments(s, all(s.buildKeys)) + rows(s.child)
    case s: SubqueryExec => rows(s.child)
    case r: ReusedSubqueryExec => subquery(r.child)
    case a: AdaptiveSparkPlanExec => rows(a)
    case other => throw new Refused(s"a subquery of ${other.getClass.getSimpleName}")
  }
}

object Fingerprint {
  /** Whether the session's settings are still those under which this exchange was planned. */
  def settingsHold(e: Exchange, session: SparkSession): Boolean =
    planned(e).forall(p => p.settings == Settings.of(session) && !openedOtherwise(p.opened, session))

  private val OpenedOtherwise = "files that were opened in a session with other settings"

  /** Files are split and read under the settings of the session that has opened them, as they are by then. */
  private def openedOtherwise(opened: Seq[SparkSession], session: SparkSession): Boolean =
    opened.exists(other => (other ne session) && Settings.ofTasks(other) != Settings.ofTasks(session))

  private def opened(p: SparkPlan): Seq[SparkSession] = p match {
    case f: FileSourceScanExec => Seq(f.relation.sparkSession.asInstanceOf[SparkSession])
    case c: InMemoryTableScanExec => opened(c.relation.cacheBuilder.cachedPlan)
    case s: QueryStageExec => opened(s.plan)
    case a: AdaptiveSparkPlanExec => opened(a.initialPlan)
    case s: Stored => opened(s.replaced)
    case r: ReusedExchangeExec => opened(r.child)
    case r: ReusedSubqueryExec => opened(r.child)
    case other => (other.children ++ other.subqueries).flatMap(opened).distinct
  }

  /** An exchange as it was planned, and under which settings, with its digests once somebody has asked for them. */
  private class Planned(val exchange: Exchange, val settings: String, val told: Map[String, String]) {
    @volatile var print: Either[String, String] = _
    @volatile var rows: Either[String, String] = _
    lazy val repeatable: Boolean = Repeatable(exchange)
    lazy val caches: Seq[CachedRDDBuilder] = CacheBuilds.tables(exchange)
    lazy val opened: Seq[SparkSession] = Fingerprint.opened(exchange)
  }

  /** What its query's thread had been told; a job of another thread that runs it has to be told it too. */
  def told(e: Exchange): Map[String, String] = planned(e).fold(Map.empty[String, String])(_.told)

  def repeatable(e: Exchange): Boolean = planned(e).fold(Repeatable(e))(_.repeatable)

  private val Original = TreeNodeTag[Planned]("godwit.original")

  /**
   * A stage's exchange is a copy whose input was optimized for its run, by rules that look at the cluster.
   * What it stands for is the exchange as it was planned, which the copy remembers.
   */
  def remember(plan: SparkPlan, session: SparkSession): Unit = {
    lazy val settings = Settings.of(session)
    lazy val told = Told.here(session)
    plan.foreach {
      case e: Exchange => e.setTagValue(Original, new Planned(e, settings, told))
      case _ =>
    }
    rememberFiles(plan)
  }

  def rememberFiles(plan: SparkPlan): Unit = plan.foreach {
    case f: FileSourceScanExec if f.getTagValue(Listing).isEmpty => listing(f).foreach(f.setTagValue(Listing, _))
    case _ =>
  }

  private val OfCache = TreeNodeTag[Either[String, String]]("godwit.cache")

  /** The files as they are listed when the query is planned: an index may be listed anew while it runs. */
  private val Listing = TreeNodeTag[Seq[PartitionDirectory]]("godwit.listing")

  /** The files whose rows a plan stands for, if it was ever asked. */
  def filesOf(f: FileSourceScanExec): Option[Seq[FileStatusWithMetadata]] = f.getTagValue(Listing).map(_.flatMap(_.files))

  /** The files that it would read now: a catalog lists a table's partitions each time it is asked. */
  def filesNow(f: FileSourceScanExec): Option[Seq[FileStatusWithMetadata]] = listing(f).map(_.flatMap(_.files))

  private def listing(f: FileSourceScanExec): Option[Seq[PartitionDirectory]] = f.relation.location match {
    case i @ (_: InMemoryFileIndex | _: CatalogFileIndex) =>
      Some(i.listFiles(f.partitionFilters.filterNot(_.exists(_.isInstanceOf[PlanExpression[_]])), Nil))
    case _ => None
  }

  private def planned(e: Exchange): Option[Planned] = e match {
    case s: Stored => s.replaced.getTagValue(Original)
    case other => other.getTagValue(Original)
  }

  private def ofBlock(a: Attribute): Boolean = a match {
    case FileSourceConstantMetadataAttribute(m) => m.name.startsWith("file_block_")
    case _ => false
  }

  /** Scalar functions see one row (or one batch of independent rows); iterator functions may keep state. */
  private val rowByRowTypes = Set(100, 101, 200, 250)
  private def rowByRow(e: EvalPythonExec): Boolean = e.udfs.forall(u => rowByRowTypes.contains(u.evalType))
}

/** Types of which unequal values may tie: which of them stands for all is chance. */
private[godwit] object Ties {
  def unequal(t: DataType): Boolean = floating(t) || unnormalized(t)

  def floating(t: DataType): Boolean = t.existsRecursively { case FloatType | DoubleType => true; case _ => false }

  /** Of floating-point numbers Spark takes one for all before it groups by them. */
  def unnormalized(t: DataType): Boolean = t.existsRecursively {
    case s: StringType => !s.supportsBinaryEquality
    case _: UserDefinedType[_] => true
    case _ => false
  }
}

/** Which expressions look at the order or the partitions of their input. Unknown aggregates and window functions do. */
private[godwit] object LayoutSensitive {
  def knows(e: Expression): Boolean = e match {
    case _: Rand | _: Randn | _: MonotonicallyIncreasingID | _: SparkPartitionID | _: InputFileName |
        _: InputFileBlockStart | _: InputFileBlockLength => true
    case _ => false
  }

  def within(e: Expression): Boolean = e.exists(knows)

  def aggregates(es: Seq[AggregateExpression]): Boolean = es.exists(e => !insensitive(e.aggregateFunction))

  private def insensitive(f: AggregateFunction): Boolean = f match {
    case _: Count | _: Sum | _: Average | _: Min | _: Max | _: CentralMomentAgg | _: Corr | _: Covariance |
        _: BitAndAgg | _: BitOrAgg | _: BitXorAgg | _: HyperLogLogPlusPlus | _: Percentile |
        _: BloomFilterAggregate => true
    case _ => false
  }

  /** Ranks give ties one value; row numbers, offsets and frames counted in rows do not. */
  def window(es: Seq[NamedExpression]): Boolean = es.exists(_.exists {
    case w: WindowExpression => !tieSafe(w)
    case _ => false
  })

  private def tieSafe(w: WindowExpression): Boolean = (w.windowFunction, w.windowSpec.frameSpecification) match {
    case (_: Rank | _: DenseRank | _: PercentRank | _: CumeDist, _) => true
    case (AggregateExpression(f, _, _, _, _), SpecifiedWindowFrame(kind, lower, upper)) if insensitive(f) =>
      kind == RangeFrame || (lower == UnboundedPreceding && upper == UnboundedFollowing)
    case (_: PythonUDAF | AggregateExpression(_: PythonUDAF, _, _, _, _), SpecifiedWindowFrame(_, UnboundedPreceding, UnboundedFollowing)) => true
    case _ => false
  }
}
