package org.apache.spark.sql.godwit

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Paths
import java.security.MessageDigest
import java.util.{Base64, Locale}

import scala.jdk.CollectionConverters._

import org.apache.spark.api.python.PythonFunction
import org.apache.spark.internal.config.IO_ENCRYPTION_ENABLED
import org.apache.spark.SparkEnv
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.expressions.objects.{Invoke, StaticInvoke}
import org.apache.spark.sql.catalyst.plans.{ExistenceJoin, JoinType}
import org.apache.spark.sql.catalyst.util.{ArrayData, MapData}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.{CalendarInterval, UTF8String, VariantVal}

/** Something a fingerprint must not vouch for. The message is shown to people: say what, not where. */
class Refused(message: String) extends RuntimeException(message, null, false, false)

/** A value that no rule knows. Whoever is asked about it has a name that people know better than its class. */
private[godwit] class Unknown(what: Any) extends Refused(s"a value of ${what.getClass.getName}")

/**
 * Two drivers must agree on what an expression is without sharing anything but the program. Spark's own
 * hashes and strings cannot serve: they differ between JVMs, are truncated, or are equal for two tables.
 *
 * This is a closed world: every value is written out by a rule below, length-prefixed so that no two
 * contents share a text, and whatever no rule knows is refused. Operands that commute are sorted by their own
 * encoding. An attribute is where it comes from, never its id, which is another one in every plan: Spark's own
 * canonical form keeps the ids of aggregates' results.
 */
private[godwit] abstract class Encoding {

  /** What Python functions find on the executors: files, and the environment. */
  protected def shipped: String
  protected def environment: Map[String, String]
  protected def told: Map[String, String]

  /** The digest of a subquery's plan; plans are the business of `Fingerprint`. */
  protected def subquery(plan: Any): String

  private var scope: Map[ExprId, String] = Map.empty

  /** Encodes with these attributes known, and no others. */
  protected def within(attributes: Map[ExprId, String])(body: => String): String = {
    val outer = scope
    scope = attributes
    try body finally scope = outer
  }

  private def origin(a: NamedExpression): String =
    q(scope.getOrElse(a.exprId, throw new Refused(s"the attribute ${a.name}, whose origin is not known")))

  protected def sha(text: String): String =
    MessageDigest.getInstance("SHA-256").digest(text.getBytes(UTF_8)).map("%02x".format(_)).mkString

  protected def q(text: String): String = s"${text.length}:$text"

  protected def all(values: Iterable[Any]): String = values.map(v => q(value(v))).mkString("[", "", "]")

  protected def unordered(values: Iterable[Any]): String =
    values.map(value).toSeq.sorted.map(q).mkString("{", "", "}")

  private def bytes(array: Array[Byte]): String = Base64.getEncoder.encodeToString(array)

  def value(any: Any): String = any match {
    case null => "null"
    case e: Expression => expression(e)
    case t: DataType => "T" + q(t.json)
    case m: AggregateMode => "m" + m.toString
    case j: JoinType => join(j)
    case s: String => "s" + q(s)
    case d: java.lang.Double => "D" + java.lang.Double.doubleToRawLongBits(d)
    case f: java.lang.Float => "F" + java.lang.Float.floatToRawIntBits(f)
    case n: java.lang.Number => n.getClass.getSimpleName + q(n.toString)
    case b: java.lang.Boolean => b.toString
    case c: java.lang.Character => "c" + c.charValue.toInt
    case u: UTF8String => "u" + q(bytes(u.getBytes))
    case d: Decimal => "d" + q(s"${d.toBigDecimal}/${d.precision}/${d.scale}")
    case a: Array[Byte] => "B" + q(bytes(a))
    case i: CalendarInterval => "I" + q(s"${i.months},${i.days},${i.microseconds}")
    case v: VariantVal => "V" + q(bytes(v.getValue)) + q(bytes(v.getMetadata))
    case o: Option[_] => "?" + o.map(value).fold("")(q)
    case s: scala.collection.Set[_] => unordered(s)
    case m: scala.collection.Map[_, _] =>
      m.keys.collectFirst { case k: String if pointsToFile(k) => throw new Refused(s"the option $k, which points to a file that nobody compares") }
      "M" + unordered(m)
    case s: scala.collection.Seq[_] => all(s)
    case a: Array[_] => all(a)
    case (a, b) => "(" + q(value(a)) + q(value(b)) + ")"
    case e: Enumeration#Value => "S" + q(e.toString)
    case e: java.lang.Enum[_] => "E" + q(e.getDeclaringClass.getName + "." + e.name)
    case c: Class[_] if c.getName.startsWith("org.apache.spark.") => "C" + q(c.getName)
    case p: scala.Product if known(p) => q(p.getClass.getName) + all(p.productIterator.toSeq)
    case other => throw new Unknown(other)
  }

  /** Of a reader of files, or of a function that parses. */
  private def pointsToFile(option: String): Boolean = Set("rowvalidationxsdpath", "avroschemaurl")(option.toLowerCase(Locale.ROOT))

  private def known(p: scala.Product): Boolean = {
    val name = p.getClass.getName
    name.startsWith("org.apache.spark.sql.catalyst.") || name.startsWith("org.apache.spark.sql.types.") ||
    name.startsWith("org.apache.spark.sql.internal.types.") || // what a function takes, such as strings of any collation
    name == "org.apache.spark.sql.execution.joins.HashedRelationBroadcastMode" ||
    name.startsWith("org.apache.spark.sql.execution.window.")
  }

  /** The id of the attribute that an existence join adds is arbitrary, its position is not. */
  private def join(joinType: JoinType): String = joinType match {
    case ExistenceJoin(_) => "existence"
    case other => "j" + q(other.sql)
  }

  /** Values of a literal or a local row, by their type: internal rows and arrays do not know it. */
  protected def typed(any: Any, dataType: DataType): String = (any, dataType) match {
    case (null, _) => "null"
    case (a: ArrayData, ArrayType(element, _)) =>
      all0(a.numElements(), i => if (a.isNullAt(i)) "null" else typed(a.get(i, element), element))
    case (m: MapData, MapType(key, v, _)) =>
      typed(m.keyArray(), ArrayType(key)) + typed(m.valueArray(), ArrayType(v))
    case (r: InternalRow, s: StructType) => row(r, s.fields.map(_.dataType).toSeq)
    case (v, u: UserDefinedType[_]) => q(u.getClass.getName) + typed(v, u.sqlType)
    case (v, _) => value(v)
  }

  protected def row(r: InternalRow, types: Seq[DataType]): String =
    all0(types.size, i => if (r.isNullAt(i)) "null" else typed(r.get(i, types(i)), types(i)))

  private def all0(n: Int, element: Int => String): String = (0 until n).map(i => q(element(i))).mkString("(", "", ")")

  def expression(e: Expression): String = e match {
    case a: AttributeReference => "@" + origin(a) + q(a.dataType.json)
    case a: Alias => "as" + q(expression(a.child))
    case s: SortOrder => "by" + q(expression(s.child)) + s.direction.sql + s.nullOrdering.sql
    case l: LambdaFunction =>
      val arguments = l.arguments.zipWithIndex.map { case (a, i) => a.exprId -> s"lambda ${scope.size}.$i" }
      "lambda" + all(l.arguments.map(_.dataType)) + q(within(scope ++ arguments)(expression(l.function)))
    case v: NamedLambdaVariable => "@" + origin(v) + q(v.dataType.json)
    case l: Literal => "L" + q(l.dataType.json) + q(typed(l.value, l.dataType))
    case u: PythonUDF => "PY" + u.evalType + q(value(u.dataType)) + all(u.children) + python(u.func, u.udfDeterministic)
    case u: PythonUDAF => "PA" + u.evalType + q(value(u.dataType)) + all(u.children) + python(u.func, u.udfDeterministic)
    case s: org.apache.spark.sql.execution.ScalarSubquery => "SCALAR" + subquery(s.plan)
    case s: org.apache.spark.sql.execution.InSubqueryExec => "IN" + q(expression(s.child)) + subquery(s.plan)
    case DynamicPruningExpression(child) => "PRUNE" + q(expression(child))
    case a: AggregateExpression =>
      // A merge reads buffers by position; what they were made of stands in the partial aggregate below.
      val merged: Map[ExprId, String] = if (a.mode == Final || a.mode == PartialMerge) a.aggregateFunction.references.map(_.exprId -> "merged").toMap else Map.empty
      within(merged ++ scope)("AE" + q(value(a.aggregateFunction)) + a.mode + a.isDistinct + q(value(a.filter)))
    case i: In if i.deterministic => "IN" + q(expression(i.value)) + unordered(i.list.distinct)
    // A random number is drawn or not by what was evaluated before it: there the order stays.
    case c: BinaryComparison if c.deterministic && !c.isInstanceOf[EqualTo] && !c.isInstanceOf[EqualNullSafe] => comparison(c)
    case _ if e.deterministic && operator(e).isDefined =>
      val op = operator(e).get
      "COMM" + q(op) + operands(e, op).sorted.map(q).mkString("[", "", "]")
    case _: ScalaUDF | _: UserDefinedExpression | _: CallMethodViaReflection => throw new Refused(s"a ${e.prettyName} function")
    case _ if !e.deterministic && !LayoutSensitive.knows(e) && e.children.forall(_.deterministic) =>
      throw new Refused(s"the non-deterministic ${e.prettyName}")
    // Spark calls it deterministic.
    case s: StaticInvoke if s.functionName == "aesEncrypt" => throw new Refused(s"${called(s)}, which may draw a random number")
    case p: scala.Product if e.getClass.getName.startsWith("org.apache.spark.sql.catalyst.") =>
      try q(e.getClass.getName) + all(p.productIterator.toSeq) catch { case _: Unknown => throw new Refused(s"${called(e)}, with an argument that is not known") }
    case _ => throw new Refused(s"${called(e)}, which is not known")
  }

  /** As people write it. Some functions of Spark's become calls of a method, which has the function's name in Java's spelling. */
  private def called(e: Expression): String = "the function " + (e match {
    case s: StaticInvoke => s.scalarFunction.fold(sql(s.functionName))(_.name)
    case i: Invoke => (i.functionName, i.targetObject) match {
      case ("evaluate", Literal(evaluator, _)) if evaluator != null => sql(evaluator.getClass.getSimpleName.stripSuffix("Evaluator"))
      case (method, _) => sql(method)
    }
    case other => other.prettyName
  })

  private def sql(method: String): String = method.replaceAll("([a-z0-9])([A-Z])", "$1_$2").toLowerCase(java.util.Locale.ROOT)

  /** `a > b` is `b < a`. */
  private def comparison(c: BinaryComparison): String = {
    val (left, right, name) = (expression(c.left), expression(c.right), c.getClass.getSimpleName)
    if (left <= right) q(name) + q(left) + q(right)
    else q(if (name.startsWith("Greater")) name.replace("Greater", "Less") else name.replace("Less", "Greater")) + q(right) + q(left)
  }

  /** Commutative operators; their evaluation mode is part of them. */
  private def operator(e: Expression): Option[String] = e match {
    case a: Add => Some(classOf[Add].getName + q(value(a.evalContext)))
    case m: Multiply => Some(classOf[Multiply].getName + q(value(m.evalContext)))
    // Not the greatest or least: of two values that compare as equal, the first is taken.
    case _: And | _: Or | _: EqualTo | _: EqualNullSafe | _: BitwiseAnd | _: BitwiseOr | _: BitwiseXor => Some(e.getClass.getName)
    case _ => None
  }

  private def operands(e: Expression, op: String): Seq[String] = {
    // Sums and products are not: floating-point digits and ANSI overflows depend on the order of evaluation.
    val associative = e match { case _: And | _: Or | _: BitwiseAnd | _: BitwiseOr | _: BitwiseXor => true; case _ => false }
    e.children.flatMap(c => if (associative && operator(c).contains(op)) operands(c, op) else Seq(expression(c)))
  }

  /**
   * A pickled command alone does not identify a function: broadcast values travel beside it, and a closure
   * over 1 MB is itself a broadcast. Their contents are hashed. What a function adds to an accumulator is no
   * row, and would be lost with the run that is not repeated.
   */
  private def python(func: PythonFunction, deterministic: Boolean): String = {
    if (!deterministic) throw new Refused("a non-deterministic Python function")
    val broadcasts = Option(func.broadcastVars).map(b => b.asScala.toSeq).getOrElse(Nil)
    if (broadcasts.nonEmpty && SparkEnv.get.conf.get(IO_ENCRYPTION_ENABLED)) {
      throw new Refused("a Python function with an encrypted broadcast value")
    }
    val command = func.command.toArray
    refuseAccumulators(command)
    val variables = environment ++ func.envVars.asScala.filterNot(v => Settings.rotates(v._1))
    q(bytes(command)) + q(func.pythonExec) + q(func.pythonVer) + unordered(variables) + unordered(told) + q(shipped) +
      broadcasts.map(b => q(fileDigest(b.value.path))).mkString("[", "", "]")
  }

  private def refuseAccumulators(pickled: Array[Byte]): Unit =
    if (pickled.indexOfSlice(accumulator) >= 0) throw new Refused("a Python function with an accumulator")

  private def fileDigest(path: String): String = {
    val digest = MessageDigest.getInstance("SHA-256")
    var before = Array.emptyByteArray
    Bytes.of(Paths.get(path)) { (buffer, length) =>
      digest.update(buffer, 0, length)
      val piece = before ++ buffer.take(length)
      refuseAccumulators(piece)
      before = piece.takeRight(accumulator.length)
    }
    bytes(digest.digest())
  }

  /** By this name pyspark pickles an accumulator. */
  private val accumulator = "_deserialize_accumulator".getBytes(UTF_8)
}
