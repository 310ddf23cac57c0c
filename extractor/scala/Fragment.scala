package org.apache.spark.sql.godwit

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.json4s._
import org.json4s.jackson.Serialization

/** One file of blocks: the reduce partitions `first` until `last`, and where its directory lies. */
case class BlockFile(name: String, first: Int, last: Int, directoryOffset: Long, directoryLength: Int, directoryCrc: Int)

/**
 * What the store knows of one finished exchange. `rows` stays None where Spark did not know: AQE removes
 * relations that are known to be empty. `bytesByPartition` is empty for an exchange without a single mapper.
 */
case class Fragment(
    fingerprint: String,
    kind: String,
    label: String,
    folder: String,
    mappers: Int,
    partitions: Int,
    bytesByPartition: Seq[Long],
    blockSizes: String,
    dataSize: Long,
    rows: Option[Long],
    codec: Option[String],
    fields: Int,
    files: Seq[BlockFile]) {

  def bytes: Long = bytesByPartition.sum

  /** What a task needs to read blocks: without the driver's statistics. */
  def slim: Fragment = copy(bytesByPartition = Nil, blockSizes = "")
}

object Fragment {
  private implicit val formats: Formats = DefaultFormats

  def encode(fragment: Fragment): Array[Byte] = Serialization.write(fragment).getBytes(UTF_8)
  def decode(bytes: Array[Byte]): Fragment = Serialization.read[Fragment](new String(bytes, UTF_8))
}

/** The fragments that this driver may use, and what became of them. */
object Fragments {
  private val loaded = new ConcurrentHashMap[String, Fragment]
  private val usedNames = ConcurrentHashMap.newKeySet[String]
  private val lostReasons = new ConcurrentHashMap[String, String]

  def load(fragments: Seq[Fragment]): Unit = {
    loaded.clear(); usedNames.clear(); lostReasons.clear()
    fragments.foreach(f => loaded.put(f.fingerprint, f))
  }

  def isEmpty: Boolean = loaded.isEmpty
  def get(fingerprint: String): Option[Fragment] =
    Option(loaded.get(fingerprint)).filterNot(f => lostReasons.containsKey(f.fingerprint))
  def used(fragment: Fragment): Unit = usedNames.add(fragment.fingerprint)

  /** True for the first report of this fragment. */
  def lost(fragment: Fragment, reason: String): Boolean = lostReasons.putIfAbsent(fragment.fingerprint, reason) == null

  def usedFragments: Seq[Fragment] = usedNames.asScala.toSeq.sorted.map(loaded.get)
  def lostFragments: Seq[(Fragment, String)] = lostReasons.asScala.toSeq.sortBy(_._1).map { case (f, why) => loaded.get(f) -> why }
}
