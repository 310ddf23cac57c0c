package org.apache.spark.sql.godwit

import java.io.InputStream

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.internal.config
import org.apache.spark.shuffle.ShuffleManager
import org.apache.spark.storage.{BlockId, ShuffleBlockFetcherIterator}

/** The calls that differ between Spark's minor versions. */
object ThisSpark {
  def shuffleManager: ShuffleManager = SparkEnv.get.blockingShuffleManager

  /** The blocks of one reduce partition as (map index, bytes as written): decrypted if need be, never decompressed. */
  def rawBlocks(shuffleId: Int, reduce: Int, context: TaskContext): Iterator[(Int, InputStream)] = {
    val env = SparkEnv.get
    val conf = env.conf
    val blocks = env.mapOutputTracker.getMapSizesByExecutorId(shuffleId, reduce).map { case (at, ids) => (at, ids.toSeq) }.toSeq
    val mapIndex = blocks.flatMap(_._2.map { case (id, _, map) => id -> map }).toMap
    val metrics = context.taskMetrics().createTempShuffleReadMetrics()
    new ShuffleBlockFetcherIterator(context, env.blockManager.blockStoreClient, env.blockManager, env.mapOutputTracker,
      blocks.iterator, (_: BlockId, in: InputStream) => env.serializerManager.wrapForEncryption(in),
      conf.get(config.REDUCER_MAX_SIZE_IN_FLIGHT) * 1024 * 1024, conf.get(config.REDUCER_MAX_REQS_IN_FLIGHT),
      conf.get(config.REDUCER_MAX_BLOCKS_IN_FLIGHT_PER_ADDRESS), conf.get(config.MAX_REMOTE_BLOCK_SIZE_FETCH_TO_MEM),
      conf.get(config.SHUFFLE_MAX_ATTEMPTS_ON_NETTY_OOM), false, false, false,
      conf.get(config.SHUFFLE_CHECKSUM_ALGORITHM), metrics, false).toCompletionIterator
      .map { case (id, in) => (mapIndex(id), in) }
  }
}
