package org.apache.spark.sql.godwit

import java.io._
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap

import scala.collection.immutable.ArraySeq
import scala.jdk.CollectionConverters._

/** One file of blocks: the reduce partitions `first` until `last`, and where its directory lies. */
case class BlockFile(name: String, first: Int, last: Int, directoryOffset: Long, directoryLength: Int, directoryCrc: Int)

/**
 * What the store knows of one finished exchange. `rows` stays None where Spark did not know: AQE removes
 * relations that are known to be empty. `bytesByPartition` is empty for an exchange without a single mapper. `madeOf`
 * are the fingerprints of what lay beneath it and would come out otherwise in another run.
 */
case class Fragment(
    fingerprint: String,
    kind: String,
    label: String,
    folder: String,
    mappers: Int,
    partitions: Int,
    bytesByPartition: Seq[Long],
    blockSizes: Seq[Byte],
    dataSize: Long,
    rows: Option[Long],
    codec: Option[String],
    fields: Int,
    files: Seq[BlockFile],
    madeOf: Set[String] = Set.empty) {

  def bytes: Long = bytesByPartition.sum

  /** What a task needs to read blocks: without the driver's statistics. */
  def slim: Fragment = copy(bytesByPartition = Nil, blockSizes = Nil)
}

/** As bytes for the manifest. Written field by field: a library that finds the fields by reflection takes 0.3 s at first. */
object Fragment {
  def encode(f: Fragment): Array[Byte] = {
    val bytes = new ByteArrayOutputStream
    val out = new DataOutputStream(bytes)
    Seq(f.fingerprint, f.kind, f.label, f.folder).foreach(text(_, out))
    Seq(f.mappers, f.partitions, f.fields).foreach(out.writeInt)
    list(f.bytesByPartition, out)(out.writeLong)
    out.writeInt(f.blockSizes.size)
    out.write(f.blockSizes.toArray)
    out.writeLong(f.dataSize)
    list(f.rows.toSeq, out)(out.writeLong)
    list(f.codec.toSeq, out)(text(_, out))
    list(f.files, out) { file =>
      text(file.name, out)
      Seq(file.first, file.last, file.directoryLength, file.directoryCrc).foreach(out.writeInt)
      out.writeLong(file.directoryOffset)
    }
    bytes.toByteArray
  }

  def decode(bytes: Array[Byte]): Fragment = {
    val in = new DataInputStream(new ByteArrayInputStream(bytes))
    val Seq(fingerprint, kind, label, folder) = Seq.fill(4)(text(in))
    val Seq(mappers, partitions, fields) = Seq.fill(3)(in.readInt())
    val bytesByPartition = list(in)(in.readLong())
    val blockSizes = ArraySeq.unsafeWrapArray(in.readNBytes(in.readInt()))
    val dataSize = in.readLong()
    val rows = list(in)(in.readLong()).headOption
    val codec = list(in)(text(in)).headOption
    val files = list(in) {
      val name = text(in)
      val Seq(first, last, directoryLength, directoryCrc) = Seq.fill(4)(in.readInt())
      BlockFile(name, first, last, in.readLong(), directoryLength, directoryCrc)
    }
    Fragment(fingerprint, kind, label, folder, mappers, partitions, bytesByPartition, blockSizes, dataSize, rows, codec, fields, files)
  }

  private def text(value: String, out: DataOutputStream): Unit = { val bytes = value.getBytes(UTF_8); out.writeInt(bytes.length); out.write(bytes) }
  private def text(in: DataInputStream): String = new String(in.readNBytes(in.readInt()), UTF_8)
  private def list[T](items: Seq[T], out: DataOutputStream)(write: T => Unit): Unit = { out.writeInt(items.size); items.foreach(write) }
  private def list[T](in: DataInputStream)(read: => T): Seq[T] = Vector.fill(in.readInt())(read)
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
  def anyInDoubt: Boolean = inDoubt.nonEmpty
  def get(fingerprint: String): Option[Fragment] =
    Option(loaded.get(fingerprint)).filterNot(f => lostReasons.containsKey(f.fingerprint))
  def used(fragment: Fragment): Unit = usedNames.add(fragment.fingerprint)

  /**
   * Other fragments in use that were made of the very values that a recompute of this one would make anew: it would give
   * them, and what lies beneath them, another edition.
   */
  def inTheWay(lost: Fragment): Seq[Fragment] = {
    val anew = lost.madeOf + lost.fingerprint
    usedFragments.filter(f => f.fingerprint != lost.fingerprint && f.madeOf.exists(anew))
  }

  /** Those that mean nothing without values that another run gives otherwise, and these values themselves. */
  def inDoubt: Seq[Fragment] = {
    val all = loaded.values.asScala.toSeq
    all.filter(f => f.madeOf.nonEmpty || all.exists(_.madeOf(f.fingerprint)))
  }

  /** True for the first report of this fragment. */
  def lost(fragment: Fragment, reason: String): Boolean = lostReasons.putIfAbsent(fragment.fingerprint, reason) == null

  def usedFragments: Seq[Fragment] = usedNames.asScala.toSeq.sorted.map(loaded.get)
  def lostFragments: Seq[(Fragment, String)] = lostReasons.asScala.toSeq.sortBy(_._1).map { case (f, why) => loaded.get(f) -> why }
}
