package org.apache.spark.sql.godwit

import java.io._
import java.nio.ByteBuffer
import java.util.zip.CRC32C

import scala.collection.mutable

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, FSDataInputStream, FSDataOutputStream, LocalFileSystem, Path}

/** A stored block that is not what was stored: missing, short or changed. */
class BlockLost(message: String, cause: Throwable = null) extends IOException(message, cause)

/**
 * The format of a block file. Raw shuffle blocks as the executors hold them (compressed, serialized), one
 * section per reduce partition, each followed by its index, then a directory of the sections:
 *
 *   block block ... index | block block ... index | ... | directory
 *   index entry:     map index (4), length (8), CRC-32C of each frame (4 each)
 *   directory entry: data offset (8), data length (8), index offset (8), index length (4), index CRC (4)
 *
 * Indexes lie beside the blocks and are read by the tasks: a driver that held the index of 2,000 x 2,000
 * blocks would need 349 MB. A block is checked in frames, before a decoder sees any byte of them.
 */
object Blocks {
  val FrameBytes: Int = 1 << 18
  val DirectoryEntryBytes = 32

  def crc(bytes: Array[Byte], offset: Int, length: Int): Int = {
    val crc = new CRC32C
    crc.update(bytes, offset, length)
    crc.getValue.toInt
  }

  /** Hadoop's local file system keeps checksum files of its own beside each file; ours make them superfluous. */
  def fileSystem(path: Path, conf: Configuration): FileSystem = path.getFileSystem(conf) match {
    case local: LocalFileSystem => local.getRawFileSystem
    case other => other
  }
}

/** Writes the reduce partitions `first` until `last` of one exchange. */
class BlockWriter(out: FSDataOutputStream) {
  import Blocks._
  private val buffer = new Array[Byte](FrameBytes)
  private val directory = new ByteArrayOutputStream
  private val sections = new DataOutputStream(directory)
  private var position = 0L

  /** The blocks of one reduce partition, by the mappers that wrote them. */
  def section(blocks: Iterator[(Int, InputStream)]): Unit = entries { index =>
    blocks.foreach { case (map, in) => try block(map, index)(_.takeAll(in)) finally in.close() }
  }

  /** A partition of one block: what `content` writes. */
  def single(content: OutputStream => Unit): Unit = entries(block(0, _)(content))

  private def entries(write: DataOutputStream => Unit): Unit = {
    val index = new ByteArrayOutputStream
    val start = position
    write(new DataOutputStream(index))
    sections.writeLong(start)
    sections.writeLong(position - start)
    sections.writeLong(position)
    sections.writeInt(index.size)
    sections.writeInt(crc(index.toByteArray, 0, index.size))
    out.write(index.toByteArray)
    position += index.size
  }

  private def block(map: Int, index: DataOutputStream)(content: Frames => Unit): Unit = {
    val frames = new Frames
    val start = position
    content(frames)
    frames.close()
    index.writeInt(map)
    index.writeLong(position - start)
    frames.crcs.foreach(index.writeInt)
  }

  /** Passes what is written on by the frame, each with its checksum. */
  private class Frames extends OutputStream {
    val crcs: mutable.ArrayBuffer[Int] = mutable.ArrayBuffer()
    private var filled = 0

    def takeAll(in: InputStream): Unit = {
      var n = in.readNBytes(buffer, 0, FrameBytes)
      while (n > 0) {
        filled = n
        pass()
        n = if (n == FrameBytes) in.readNBytes(buffer, 0, FrameBytes) else 0
      }
    }

    override def write(byte: Int): Unit = write(Array(byte.toByte), 0, 1)

    override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = {
      var (from, left) = (offset, length)
      while (left > 0) {
        val n = math.min(left, FrameBytes - filled)
        System.arraycopy(bytes, from, buffer, filled, n)
        filled += n
        from += n
        left -= n
        if (filled == FrameBytes) pass()
      }
    }

    private def pass(): Unit = {
      out.write(buffer, 0, filled)
      position += filled
      crcs += crc(buffer, 0, filled)
      filled = 0
    }

    override def close(): Unit = if (filled > 0) pass()
  }

  /** The directory's offset, length and checksum. */
  def finish(): (Long, Int, Int) = {
    out.write(directory.toByteArray)
    (position, directory.size, crc(directory.toByteArray, 0, directory.size))
  }
}

/** Reads sections of one fragment; keeps the file it read last open, since neighbours lie in one file. */
class BlockReader(fragment: Fragment, conf: Configuration) extends Closeable {
  import Blocks._
  private var current: BlockFile = _
  private var in: FSDataInputStream = _
  private var directory: ByteBuffer = _

  /** The verified bytes of partition `reduce` that the mappers `firstMap` until `lastMap` wrote. */
  def open(reduce: Int, firstMap: Int, lastMap: Int): Option[InputStream] =
    if (fragment.files.isEmpty) None // not a row in any partition
    else {
      val file = fragment.files.find(f => f.first <= reduce && reduce < f.last).getOrElse(throw new BlockLost(s"no file holds partition $reduce"))
      lost(s"block file ${file.name}") {
        select(file)
        val entry = (reduce - file.first) * DirectoryEntryBytes
        val index = read(directory.getLong(entry + 16), directory.getInt(entry + 24), directory.getInt(entry + 28))
        val frames = wanted(index, directory.getLong(entry), firstMap, lastMap)
        if (frames.isEmpty) None else Some(new VerifiedInputStream(in, frames))
      }
    }

  private def select(file: BlockFile): Unit = if (current != file) {
    close()
    val path = new Path(fragment.folder, file.name)
    in = fileSystem(path, conf).open(path)
    current = file
    directory = ByteBuffer.wrap(read(file.directoryOffset, file.directoryLength, file.directoryCrc))
  }

  private def read(offset: Long, length: Int, expected: Int): Array[Byte] = {
    val bytes = new Array[Byte](length)
    in.readFully(offset, bytes)
    if (crc(bytes, 0, length) != expected) throw new BlockLost(s"wrong checksum at $offset of ${current.name}")
    bytes
  }

  private def wanted(index: Array[Byte], dataOffset: Long, firstMap: Int, lastMap: Int): Array[Frame] = {
    val entries = ByteBuffer.wrap(index)
    val frames = mutable.ArrayBuffer[Frame]()
    var offset = dataOffset
    while (entries.hasRemaining) {
      val map = entries.getInt()
      var left = entries.getLong()
      while (left > 0) {
        val length = math.min(left, FrameBytes).toInt
        val expected = entries.getInt()
        if (firstMap <= map && map < lastMap) frames += Frame(offset, length, expected)
        offset += length
        left -= length
      }
    }
    frames.toArray
  }

  override def close(): Unit = if (in != null) { in.close(); in = null; current = null }

  private def lost[T](what: String)(body: => T): T = try body catch {
    case b: BlockLost => throw b
    case e: IOException => throw new BlockLost(s"$what: $e", e)
  }
}

object BlockReader {
  /** What of the fragment is not there at all. */
  def missing(fragment: Fragment, conf: Configuration): Option[String] = fragment.files.iterator.map(f => new Path(fragment.folder, f.name))
    .find(path => !Blocks.fileSystem(path, conf).exists(path)).map(path => s"$path does not exist")

  /** Reads all that one file holds; what is wrong with it, if anything. */
  def problem(fragment: Fragment, file: BlockFile, conf: Configuration): Option[String] = {
    val reader = new BlockReader(fragment, conf)
    try {
      (file.first until file.last).foreach(reader.open(_, 0, Int.MaxValue).foreach(_.transferTo(OutputStream.nullOutputStream())))
      None
    } catch { case e: BlockLost => Some(e.getMessage) }
    finally reader.close()
  }
}

case class Frame(offset: Long, length: Int, crc: Int)

/** The frames one after the other; neighbours are fetched together, each is verified before it is handed out. */
class VerifiedInputStream(in: FSDataInputStream, frames: Array[Frame]) extends InputStream {
  private var next = 0
  private var buffer = new Array[Byte](0)
  private var position = 0
  private var limit = 0

  private def fill(): Boolean = next < frames.length && {
    val start = frames(next).offset
    var end = next
    var length = 0
    while (end < frames.length && frames(end).offset == start + length &&
        (end == next || length + frames(end).length <= Blocks.FrameBytes)) {
      length += frames(end).length
      end += 1
    }
    if (buffer.length < length) buffer = new Array[Byte](length)
    try in.readFully(start, buffer, 0, length) catch { case e: IOException => throw new BlockLost(s"block at $start: $e", e) }
    var offset = 0
    while (next < end) {
      if (Blocks.crc(buffer, offset, frames(next).length) != frames(next).crc) {
        throw new BlockLost(s"wrong checksum of the block at ${frames(next).offset}")
      }
      offset += frames(next).length
      next += 1
    }
    position = 0
    limit = length
    true
  }

  override def read(): Int = if (position < limit || fill()) { position += 1; buffer(position - 1) & 0xff } else -1

  override def read(target: Array[Byte], offset: Int, length: Int): Int =
    if (length == 0) 0
    else if (position < limit || fill()) {
      val n = math.min(length, limit - position)
      System.arraycopy(buffer, position, target, offset, n)
      position += n
      n
    } else -1

  override def available(): Int = limit - position
}
