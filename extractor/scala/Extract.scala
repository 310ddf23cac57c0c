package org.apache.spark.sql.godwit

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, OutputStream}
import java.util.concurrent.TimeoutException
import java.util.zip.{Deflater, DeflaterOutputStream}

import scala.collection.immutable.ArraySeq
import scala.concurrent.Future
import scala.concurrent.duration._
import scala.reflect.ClassTag

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark._
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.internal.config
import org.apache.spark.io.CompressionCodec
import org.apache.spark.rdd.{BlockRDD, DeterministicLevel, RDD}
import org.apache.spark.scheduler.MapStatus
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.columnar.CachedBatch
import org.apache.spark.sql.execution.{SparkPlan, UnsafeRowSerializer}
import org.apache.spark.sql.execution.adaptive._
import org.apache.spark.sql.execution.columnar.{InMemoryRelation, InMemoryTableScanExec}
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec
import org.apache.spark.sql.execution.joins.Relations
import org.apache.spark.sql.types.DataType
import org.apache.spark.storage.{BlockId, RDDBlockId}
import org.apache.spark.util.{SerializableConfiguration, ThreadUtils}

/**
 * Takes the rows of finished exchanges out to the store. A shuffle's blocks go as they lie on the executors'
 * disks, by a Spark job that neither decodes nor sends them through the driver, and the rows of a cached table by
 * a job as well; a broadcast is in the driver already.
 */
class Extract(sc: SparkContext, base: String, timeoutMs: Long) {
  private lazy val hadoop = sc.broadcast(new SerializableConfiguration(sc.hadoopConfiguration))

  def rowsOf(holder: SparkPlan, fingerprint: String, label: String, name: String): Fragment = holder match {
    case s: ShuffleQueryStageExec => shuffle(s, s.shuffle.asInstanceOf[ShuffleExchangeExec], fingerprint, label, s"$base/$name")
    case b: BroadcastQueryStageExec => broadcast(b, fingerprint, label, s"$base/$name")
    case c: InMemoryTableScanExec => cache(c.relation, c.session, fingerprint, label, s"$base/$name")
  }

  private def shuffle(stage: ShuffleQueryStageExec, exchange: ShuffleExchangeExec, fingerprint: String, label: String, folder: String): Fragment = {
    val statistics = stage.getRuntimeStatistics
    val codec = if (sc.conf.get(config.SHUFFLE_COMPRESS)) Some(sc.conf.get(config.IO_COMPRESSION_CODEC)) else None
    // The blocks of a partition are read as one stream.
    codec.filterNot(c => CompressionCodec.supportsConcatenationOfSerializedStreams(CompressionCodec.createCodec(sc.conf, c)))
      .foreach(c => throw new Refused(s"blocks compressed by $c, which cannot be joined"))
    val empty = Fragment(fingerprint, "shuffle", label, folder, 0, exchange.numPartitions, Nil, Nil,
      statistics.sizeInBytes.toLong, statistics.rowCount.map(_.toLong), codec, exchange.output.size, Nil)
    val written = Snapshot.statistics(stage).getOrElse(throw new IllegalStateException("the stage is not finished"))
    if (written == null) empty
    else {
      val dependency = exchange.shuffleDependency
      Extract.refuseIndeterminate(dependency.rdd)
      val bytes = written.bytesByPartitionId
      val files = if (bytes.exists(_ > 0)) write(dependency, Extract.groups(bytes, sc.defaultParallelism), folder) else Nil
      // AQE takes a relation of no rows for empty, and a count may have been lost with a task.
      empty.copy(mappers = exchange.numMappers, bytesByPartition = bytes.toSeq, rows = empty.rows.filter(_ > 0 || !bytes.exists(_ > 0)),
        blockSizes = BlockSizes.encode(dependency.shuffleId, exchange.numPartitions), files = files)
    }
  }

  private def write(dependency: ShuffleDependency[Int, InternalRow, InternalRow], groups: Seq[(Int, Int)], folder: String): Seq[BlockFile] = {
    run(new ExtractRDD(sc, dependency, groups.toArray, folder, hadoop))
  }

  private def run[T: ClassTag](rdd: RDD[T]): Seq[T] = {
    val results = new Array[T](rdd.getNumPartitions)
    val job = sc.submitJob(rdd, (it: Iterator[T]) => it.next(), results.indices, (i: Int, result: T) => results(i) = result, ())
    Extract.await(job, timeoutMs)
    results.toSeq
  }

  /** Partition by partition, in their order: a program may rely on it. */
  private def cache(table: InMemoryRelation, reader: SparkSession, fingerprint: String, label: String, folder: String): Fragment = {
    val builder = table.cacheBuilder
    Extract.refuseIndeterminate(builder.cachedColumnBuffers)
    // Rows that memory has lost meanwhile would be made again under the settings of who reads them.
    if (Settings.ofTasks(builder.cachedPlan.session) != Settings.ofTasks(reader)) throw new Refused("a cached table of a session with other settings")
    val buffers = if (Repeatable(builder.cachedPlan)) builder.cachedColumnBuffers else held(builder.cachedColumnBuffers)
    val rows = builder.serializer.convertCachedBatchToInternalRow(buffers, table.output, table.output, builder.cachedPlan.conf)
    val types = table.output.map(_.dataType).toArray
    val (codec, conf) = (sc.conf.get(config.IO_COMPRESSION_CODEC), hadoop)
    val files = run(rows.mapPartitionsWithIndex { (i, part) =>
      val name = s"$folder/$i-${i + 1}-${TaskContext.get().taskAttemptId()}.blocks"
      Iterator(Extract.writeFile(name, i, i + 1, conf.value.value)(_.single(Extract.writeRows(part, types, codec, _))))
    })
    val statistics = table.computeStats()
    Fragment(fingerprint, "cache", label, folder, 1, files.size, files.map(_.directoryOffset), Nil, statistics.sizeInBytes.toLong,
      statistics.rowCount.map(_.toLong).filter(_ > 0), Some(codec), types.length, files)
  }

  /** What is in memory, and is not made again: where the values would be others, they must not be mixed with these. */
  private def held(buffers: RDD[CachedBatch]): RDD[CachedBatch] = {
    val blocks = buffers.partitions.map(p => RDDBlockId(buffers.id, p.index): BlockId)
    if (SparkEnv.get.blockManager.master.getLocations(blocks).exists(_.isEmpty)) throw new Refused("a cached table that memory has lost a part of")
    new BlockRDD[CachedBatch](sc, blocks)
  }

  private def broadcast(stage: BroadcastQueryStageExec, fingerprint: String, label: String, folder: String): Fragment = {
    val relation = stage.broadcast.executeBroadcast[Any]().value
    val codec = sc.conf.get(config.IO_COMPRESSION_CODEC)
    val types = stage.output.map(_.dataType).toArray
    val file = Extract.writeFile(s"$folder/0.blocks", 0, 1, hadoop.value.value) {
      _.single(out => Relations.write(relation, types, CompressionCodec.createCodec(sc.conf, codec).compressedOutputStream(out)))
    }
    val statistics = stage.getRuntimeStatistics
    Fragment(fingerprint, "broadcast", label, folder, 1, 1, Seq(file.directoryOffset), Nil, statistics.sizeInBytes.toLong,
      statistics.rowCount.map(_.toLong), Some(codec), stage.output.size, Seq(file))
  }
}

/** Its time was up: what failed by a timeout of Spark's own is something else. */
class Late(timeoutMs: Long) extends RuntimeException(
  s"could not be written within ${java.math.BigDecimal.valueOf(timeoutMs, 3).stripTrailingZeros.toPlainString} s", null, false, false)

object Extract {
  private val GroupBytes = 16L << 20

  def await[T](future: Future[T], timeoutMs: Long): T = try ThreadUtils.awaitResult(future, timeoutMs.millis) catch {
    case e: Throwable =>
      future match { case action: FutureAction[_] => action.cancel(); case _ => }
      throw (e match { case _: TimeoutException => new Late(timeoutMs); case other => other })
  }

  /** Neighbouring partitions share a task and a file: small states take one of each, large ones keep every core busy. */
  def groups(bytes: Array[Long], cores: Int): Seq[(Int, Int)] = {
    val size = math.max(GroupBytes, bytes.sum / math.max(1, 4 * cores))
    val ends = bytes.indices.foldLeft((List.empty[Int], 0L)) { case ((cuts, sum), i) =>
      if (sum + bytes(i) >= size) ((i + 1) :: cuts, 0L) else (cuts, sum + bytes(i))
    }._1.reverse
    val cuts = (0 +: ends) ++ (if (ends.lastOption.contains(bytes.length)) Nil else Seq(bytes.length))
    cuts.zip(cuts.tail)
  }

  /** Rows that a second run would make differently. Stored rows are not made again, though Spark is told so (`StoredRDD`). */
  def refuseIndeterminate(rdd: RDD[_]): Unit = {
    def indeterminate(r: RDD[_]): Boolean = r.outputDeterministicLevel == DeterministicLevel.INDETERMINATE
    def doubtful(r: RDD[_]): Boolean = indeterminate(r) && (r match {
      case s: StoredRDD => s.isRecomputed
      case _ =>
        val causes = r.dependencies.map(_.rdd).filter(indeterminate)
        causes.isEmpty || causes.exists(doubtful)
    })
    if (doubtful(rdd)) throw new Refused("Spark calls its rows indeterminate")
  }

  /** As a shuffle would write them. */
  private def writeRows(rows: Iterator[InternalRow], types: Array[DataType], codec: String, to: OutputStream): Unit = {
    val compressed = CompressionCodec.createCodec(SparkEnv.get.conf, codec).compressedOutputStream(to)
    val out = new UnsafeRowSerializer(types.length).newInstance().serializeStream(compressed)
    val toUnsafe = UnsafeProjection.create(types)
    rows.foreach(r => out.writeValue(r match { case u: UnsafeRow => u; case other => toUnsafe(other) }))
    out.close()
  }

  def writeFile(path: String, first: Int, last: Int, conf: Configuration)(fill: BlockWriter => Unit): BlockFile = {
    val target = new Path(path)
    val fs = Blocks.fileSystem(target, conf)
    var done = false
    try {
      val out = fs.create(target, false)
      try {
        val writer = new BlockWriter(out)
        fill(writer)
        val (offset, length, crc) = writer.finish()
        out.close()
        done = true
        BlockFile(target.getName, first, last, offset, length, crc)
      } finally if (!done) out.close()
    } finally if (!done) fs.delete(target, false)
  }
}

/** One task per group of reduce partitions. The file's name is the attempt's own: a retried task never shares it. */
class ExtractRDD(sc: SparkContext, dependency: ShuffleDependency[Int, InternalRow, InternalRow], groups: Array[(Int, Int)],
    folder: String, hadoop: Broadcast[SerializableConfiguration]) extends RDD[BlockFile](sc, Seq(dependency)) {

  private val shuffleId = dependency.shuffleId

  override protected def getPartitions: Array[Partition] =
    groups.indices.map(i => new Partition { override val index: Int = i }: Partition).toArray

  override def compute(split: Partition, context: TaskContext): Iterator[BlockFile] = {
    val (first, last) = groups(split.index)
    val name = s"$folder/$first-$last-${context.taskAttemptId()}.blocks"
    Iterator(Extract.writeFile(name, first, last, hadoop.value.value) { writer =>
      (first until last).foreach(r => writer.section(ThisSpark.rawBlocks(shuffleId, r, context)))
    })
  }
}

/** The (logarithmic) size of every block, as Spark's own map statuses keep them: AQE splits skewed partitions by these. */
object BlockSizes {
  private def tracker = SparkEnv.get.mapOutputTracker.asInstanceOf[MapOutputTrackerMaster]

  def encode(shuffleId: Int, partitions: Int): Seq[Byte] = {
    val bytes = new ByteArrayOutputStream
    val out = new DeflaterOutputStream(bytes, new Deflater(Deflater.BEST_SPEED))
    tracker.shuffleStatuses(shuffleId).withMapStatuses(_.foreach { status =>
      if (status == null) throw new Refused("blocks that were lost with their executor")
      out.write(Array.tabulate(partitions)(r => MapStatus.compressSize(status.getSizeForBlock(r))))
    })
    out.close()
    ArraySeq.unsafeWrapArray(bytes.toByteArray)
  }

  /** Registers a stored exchange's sizes under a shuffle id of this driver. */
  def register(shuffleId: Int, fragment: Fragment, location: org.apache.spark.storage.BlockManagerId): Unit = {
    val in = new java.util.zip.InflaterInputStream(new ByteArrayInputStream(fragment.blockSizes.toArray))
    tracker.registerShuffle(shuffleId, fragment.mappers, fragment.partitions)
    (0 until fragment.mappers).foreach { map =>
      val sizes = in.readNBytes(fragment.partitions).map(MapStatus.decompressSize)
      tracker.registerMapOutput(shuffleId, map, MapStatus(location, sizes, map))
    }
  }
}
