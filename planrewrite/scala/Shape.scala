package org.apache.spark.sql.godwit

import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest

import scala.collection.mutable

import org.apache.spark.SparkContext
import org.apache.spark.api.python.PythonFunction
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.catalog.{CatalogTable, HiveTableRelation}
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.catalyst.util.{ArrayData, MapData}
import org.apache.spark.sql.connector.catalog.Table
import org.apache.spark.sql.execution.{LogicalRDD, QueryExecution, SparkPlan, SQLExecution}
import org.apache.spark.sql.execution.datasources.{HadoopFsRelation, LogicalRelation}
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * Which of a program's queries this is, in 64 hex digits: equal whenever the same program asks again, however late it is.
 *
 * This is the opposite of `Fingerprint`, which vouches for rows. Nothing is refused here: an analyzed plan is written
 * out down to what is known, and the rest by its class. What another run has otherwise is left out: the listing of
 * files, moments in time, seeds that Spark draws, ids, which are numbered as they are met.
 */
private[godwit] object Shape {
  private val Known = TreeNodeTag[String]("godwit.shape")

  /** Every re-planning of a query asks for it. */
  def of(qe: QueryExecution): String = qe.analyzed.getTagValue(Known).getOrElse {
    val digest = new Shape().digest(qe.analyzed)
    qe.analyzed.setTagValue(Known, digest)
    digest
  }

  /** Of the query that this thread works for. */
  def here(sc: SparkContext): Option[String] = for {
    id <- Option(sc.getLocalProperty(SQLExecution.EXECUTION_ID_KEY))
    qe <- Option(SQLExecution.getQueryExecution(id.toLong))
  } yield of(qe)
}

private[godwit] class Shape {
  private val ids = mutable.Map[Any, Int]()

  def digest(plan: LogicalPlan): String =
    MessageDigest.getInstance("SHA-256").digest(any(plan).getBytes(UTF_8)).map("%02x".format(_)).mkString

  private def number(kind: String, id: Any): String = s"$kind${ids.getOrElseUpdate((kind, id), ids.size)}"

  private def q(text: String): String = s"${text.length}:$text"

  private def node(name: String, parts: Any*): String = name + parts.map(p => q(any(p))).mkString("(", "", ")")

  private def made(p: Product): String = node(p.getClass.getName, p.productIterator.toSeq: _*)

  private def any(value: Any): String = value match {
    case null => "null"
    case p: LogicalPlan => plan(p)
    case p: SparkPlan => p.nodeName
    case e: Expression => expression(e)
    case i: ExprId => number("#", i)
    case c: CommonExpressionId => number("common", c.id)
    case t: DataType => t.json
    case r: InternalRow => q(r.getClass.getSimpleName)
    case a: ArrayData => q(a.toString)
    case m: MapData => node("map", m.keyArray(), m.valueArray())
    case f: PythonFunction => node("python", f.command.toArray)
    case t: CatalogTable => node("table", t.identifier.unquotedString, t.provider, t.schema, t.partitionColumnNames, t.storage.locationUri.map(_.toString))
    case t: Table => node("table", t.name)
    case b: Array[Byte] => java.util.Base64.getEncoder.encodeToString(b)
    case _: String | _: java.lang.Number | _: java.lang.Boolean | _: java.lang.Character | _: UTF8String | _: Decimal => q(value.toString)
    case o: Option[_] => node("?", o.toSeq: _*)
    case m: scala.collection.Map[_, _] => m.toSeq.filterNot { case (k, _) => Settings.secret(k.toString) }.map { case (k, v) => q(any(k)) + q(any(v)) }.sorted.mkString("{", "", "}")
    case s: scala.collection.Set[_] => s.toSeq.map(any).sorted.map(q).mkString("{", "", "}")
    case s: scala.collection.Seq[_] => node("", s.toSeq: _*)
    case a: Array[_] => node("", a.toSeq: _*)
    case m: java.util.Map[_, _] => any(scala.jdk.CollectionConverters.MapHasAsScala(m).asScala)
    case e: Enumeration#Value => e.toString
    case e: java.lang.Enum[_] => e.name
    case p: Product if p.getClass.getName.startsWith("org.apache.spark.") || p.getClass.getName.startsWith("scala.Tuple") => made(p)
    case other => other.getClass.getName.takeWhile(_ != '$')
  }

  private def expression(e: Expression): String = e match {
    // Spark makes names up, of a counter too. A column is a place in its relation.
    case a: AttributeReference => node("@", a.dataType, a.exprId)
    case a: Alias => node("as", a.child, a.exprId)
    case v: NamedLambdaVariable => node("@", v.dataType, v.exprId)
    case Literal(_, t: DatetimeType) => node("moment", t)
    case Literal(v: ArrayData, t) => node("L", t, array(v, t))
    case l: Literal => node("L", l.dataType, l.value)
    // Not what it was seeded with: where the program does not say, it is drawn anew.
    case r: ExpressionWithRandomSeed => node(r.getClass.getName, r.children.filterNot(_ eq r.seedExpression): _*)
    case u: ScalaUDF => node("scala", u.function.getClass.getName.takeWhile(_ != '$'), u.udfName, u.dataType, u.children)
    case p: Product => made(p)
    case other => node(other.getClass.getName, other.children: _*)
  }

  private def array(values: ArrayData, t: DataType): Any = t match {
    case ArrayType(element, _) => values.toSeq[Any](element)
    case _ => values
  }

  private def plan(p: LogicalPlan): String = p match {
    case r: LogicalRelation => node("relation", source(r), r.output, r.catalogTable)
    case h: HiveTableRelation => node("hive", h.tableMeta, h.output)
    case v: DataSourceV2Relation => node("v2", v.table, v.output, v.options.asCaseSensitiveMap)
    case r: LogicalRDD => node("rdd", r.output)
    case l: LocalRelation => node("local", l.output, l.data.size, l.data.map(_.hashCode).hashCode)
    case s: Sample => node("sample", s.lowerBound, s.upperBound, s.withReplacement, s.child)
    case c: CollectMetrics => node("metrics", c.name, c.metrics, c.child)
    case c: CTERelationDef => node("cte", c.child, number("cte", c.id))
    case c: CTERelationRef => node("cte", number("cte", c.cteId), c.output)
    case v: View => node("view", v.desc.identifier.unquotedString, v.child)
    case p: Product => made(p)
    case other => node(other.getClass.getName, other.children: _*)
  }

  private def source(r: LogicalRelation): Any = r.relation match {
    case f: HadoopFsRelation =>
      Seq(f.location.rootPaths.map(_.toString), f.fileFormat.getClass.getName, f.dataSchema, f.partitionSchema, f.bucketSpec, f.options)
    case other => Seq(other.getClass.getName, other.schema)
  }
}
