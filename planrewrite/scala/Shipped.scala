package org.apache.spark.sql.godwit

import java.io.File
import java.net.URI
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.security.MessageDigest

import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkContext, SparkFiles}

/**
 * What a Python function can see besides itself: modules, files and archives that the program sends to the
 * executors (`addPyFile`, `addFile`, `--py-files` ...). They are no part of a plan, and often never loaded by the
 * driver, but another content of theirs gives other rows.
 */
private[godwit] object Shipped {
  private val OfAllSessions = "default"

  /** Of the copies that the driver has made of them: what lies where they came from may be another by now. */
  def digest(sc: SparkContext): String = {
    val sent = sc.addedFiles ++ sc.addedArchives
    if (sent.exists { case (session, files) => session != OfAllSessions && files.nonEmpty }) {
      throw new Refused("a Python function beside artifacts of its session")
    }
    val names = Seq(sc.addedFiles, sc.addedArchives).flatMap(_.get(OfAllSessions)).flatMap(_.keys).map(name).distinct.sorted
    val root = new File(SparkFiles.getRootDirectory()).toPath
    val there = names.flatMap(each => files(root.resolve(each), each))
    val listing = there.map(f => s"${root.relativize(f)} ${Files.size(f)} ${Files.getLastModifiedTime(f)}")
    if (known._1 != listing) known = (listing, contents(there, root))
    known._2
  }

  /** Of what was there at the last look: archives may be large, and are asked for with every plan. */
  @volatile private var known: (Seq[String], String) = (Nil, contents(Nil, null))

  /** An archive may be given another name behind a '#'. */
  private def name(uri: String): String = {
    val parsed = new URI(uri)
    Option(parsed.getFragment).getOrElse(new File(parsed.getPath).getName)
  }

  /** But for what Python itself puts there when it imports. */
  private def files(path: Path, name: String): Seq[Path] = {
    if (!Files.exists(path)) throw new Refused(s"a Python function beside $name, which the driver has no copy of")
    val found = Files.walk(path)
    try found.iterator.asScala.filter(f => Files.isRegularFile(f) && f.getParent.getFileName.toString != "__pycache__").toSeq.sorted
    finally found.close()
  }

  private def contents(files: Seq[Path], root: Path): String = {
    val digest = MessageDigest.getInstance("SHA-256")
    files.foreach { file =>
      digest.update(s"${root.relativize(file)} ${Files.size(file)}\n".getBytes(UTF_8))
      Bytes.of(file)(digest.update(_, 0, _))
    }
    digest.digest().map("%02x".format(_)).mkString
  }
}

private[godwit] object Bytes {
  /** A file's content, in pieces of (buffer, length). */
  def of(file: Path)(piece: (Array[Byte], Int) => Unit): Unit = {
    val in = Files.newInputStream(file)
    try {
      val buffer = new Array[Byte](1 << 16)
      Iterator.continually(in.read(buffer)).takeWhile(_ >= 0).foreach(piece(buffer, _))
    } finally in.close()
  }
}
