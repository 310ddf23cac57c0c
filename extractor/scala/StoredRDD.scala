package org.apache.spark.sql.godwit

import java.io.{InputStream, InterruptedIOException, IOException}
import java.nio.channels.ClosedByInterruptException

import org.apache.spark._
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.io.CompressionCodec
import org.apache.spark.rdd.{DeterministicLevel, RDD}
import org.apache.spark.shuffle.FetchFailedException
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution._
import org.apache.spark.util.SerializableConfiguration

/**
 * Reads stored blocks as a shuffle reader would, each task its own. A block that proves to be lost is a fetch
 * failure: Spark then runs this stage again, by which time `Fallback` has given this RDD the real shuffle of
 * the exchange that the stored one replaced.
 */
class StoredRDD(sc: SparkContext, fragment: Fragment, specs: Array[ShufflePartitionSpec], byValue: Boolean,
    pad: ShuffleDependency[Int, InternalRow, InternalRow], hadoop: Broadcast[SerializableConfiguration])
    extends RDD[InternalRow](sc, Nil) {

  /** What can make these rows again; it lives as long as somebody may read them. */
  @transient var standsFor: AnyRef = _
  @volatile private var recomputed: ShuffleDependency[Int, InternalRow, InternalRow] = _
  private val padId = pad.shuffleId

  def fallBackTo(dependency: ShuffleDependency[Int, InternalRow, InternalRow]): Unit = {
    recomputed = dependency
    clearDependencies() // the scheduler asks for the dependencies again when it runs the stage again
  }

  def isRecomputed: Boolean = recomputed != null

  override protected def getDependencies: Seq[Dependency[_]] = Seq(if (recomputed != null) recomputed else pad)
  /** What a stage has made of stored partitions must not be completed from recomputed ones that hold other rows. */
  override protected def getOutputDeterministicLevel: DeterministicLevel.Value =
    if (byValue) DeterministicLevel.UNORDERED else DeterministicLevel.INDETERMINATE

  override protected def getPartitions: Array[Partition] =
    specs.indices.map(i => new Partition { override val index: Int = i }: Partition).toArray

  override def compute(split: Partition, context: TaskContext): Iterator[InternalRow] = {
    val (maps, reduces) = specs(split.index) match {
      case CoalescedPartitionSpec(first, last, _) => ((0, Int.MaxValue), (first, last))
      case PartialReducerPartitionSpec(reduce, firstMap, lastMap, _) => ((firstMap, lastMap), (reduce, reduce + 1))
      case PartialMapperPartitionSpec(map, first, last) => ((map, map + 1), (first, last))
      case CoalescedMapperPartitionSpec(firstMap, lastMap, reducers) => ((firstMap, lastMap), (0, reducers))
    }
    if (recomputed != null) shuffled(maps, reduces, context) else stored(maps, reduces, context)
  }

  private def stored(maps: (Int, Int), reduces: (Int, Int), context: TaskContext): Iterator[InternalRow] = {
    val reader = new BlockReader(fragment, hadoop.value.value)
    context.addTaskCompletionListener[Unit](_ => reader.close())
    val rows = (reduces._1 until reduces._2).iterator.flatMap(r => StoredRDD.rows(fragment, reader, r, maps._1, maps._2))
    def lost(e: IOException): Nothing = {
      Fallback.report(fragment, e.toString).foreach(why => throw new SparkException(why, e))
      throw new FetchFailedException(null, padId, -1L, -1, reduces._1, s"stored exchange ${fragment.label} lost a block: $e", e)
    }
    StoredRDD.guarded(rows, context)(lost)
  }

  /** Ranges of mappers keep tiling the whole when the recomputed shuffle has another number of them. */
  private def shuffled(maps: (Int, Int), reduces: (Int, Int), context: TaskContext): Iterator[InternalRow] = {
    val mappers = recomputedMappers
    def scaled(map: Int): Int = if (map == Int.MaxValue) mappers else (map.toLong * mappers / fragment.mappers).toInt
    val metrics = context.taskMetrics().createTempShuffleReadMetrics()
    ThisSpark.shuffleManager.getReader[Int, InternalRow](
      recomputed.shuffleHandle, scaled(maps._1), scaled(maps._2), reduces._1, reduces._2, context, metrics).read().map(_._2)
  }

  private lazy val recomputedMappers: Int = Fallback.mappers(recomputed)
}

object StoredRDD {
  /** Blocks are read as rows are asked for: any of them may prove to be lost. A reader that was killed proves nothing. */
  def guarded(rows: Iterator[InternalRow], context: TaskContext)(lost: IOException => Nothing): Iterator[InternalRow] = new Iterator[InternalRow] {
    override def hasNext: Boolean = try rows.hasNext catch { case e: IOException if !killed(e) => lost(e) }
    override def next(): InternalRow = try rows.next() catch { case e: IOException if !killed(e) => lost(e) }
    private def killed(e: IOException): Boolean =
      context.isInterrupted() || e.isInstanceOf[ClosedByInterruptException] || e.isInstanceOf[InterruptedIOException]
  }

  def rows(fragment: Fragment, reader: BlockReader, reduce: Int, firstMap: Int, lastMap: Int): Iterator[UnsafeRow] =
    reader.open(reduce, firstMap, lastMap).iterator.flatMap { verified =>
      new UnsafeRowSerializer(fragment.fields).newInstance().deserializeStream(decompressed(fragment, verified))
        .asKeyValueIterator.map(_._2.asInstanceOf[UnsafeRow])
    }

  def decompressed(fragment: Fragment, in: InputStream): InputStream =
    fragment.codec.fold(in)(CompressionCodec.createCodec(SparkEnv.get.conf, _).compressedInputStream(in))
}
