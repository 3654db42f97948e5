package org.apache.spark.sql.millpond.testing

import java.io.{FileInputStream, IOException}
import java.net.URI

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  BlockLocation, DelegateToFileSystem, FileStatus, LocatedFileStatus, Path, RawLocalFileSystem,
  RemoteIterator
}

/** A local disk that is reached as an object storage is: with a key file (`millpond.test.key`), and
  * without a request that replaces a file. After each deletion `millpond.test.failing` renames
  * fail. Each folder is listed with `millpond.test.files` files, which are not there. */
class ObjectDisk extends RawLocalFileSystem {
  private var site: URI = _
  private var failing = 0

  override def initialize(name: URI, conf: Configuration): Unit = {
    Option(conf.get("millpond.test.key")).foreach(new FileInputStream(_).close())
    site = URI.create(s"${name.getScheme}://${name.getAuthority}")
    super.initialize(name, conf)
  }

  override def getUri: URI = if (site == null) super.getUri else site

  override def delete(path: Path, recursive: Boolean): Boolean = {
    failing = getConf.getInt("millpond.test.failing", 0)
    super.delete(path, recursive)
  }

  override def rename(from: Path, to: Path): Boolean =
    if (exists(to)) false
    else if (failing > 0) {
      failing -= 1
      throw new IOException("the rename fails")
    } else super.rename(from, to)

  override def listLocatedStatus(folder: Path): RemoteIterator[LocatedFileStatus] = {
    val numbers = Iterator.range(0, getConf.getInt("millpond.test.files", 0))
    new RemoteIterator[LocatedFileStatus] {
      override def hasNext: Boolean = numbers.hasNext
      override def next(): LocatedFileStatus = {
        val file = new FileStatus(1L, false, 1, 1L, 0L, new Path(folder, s"${numbers.next()}"))
        val host = Array("host")
        new LocatedFileStatus(file, Array(new BlockLocation(host, host, 0L, 1L)))
      }
    }
  }
}

/** The same by Hadoop's other interface, which deletes and renames by itself. */
class ObjectDiskContext(site: URI, conf: Configuration)
    extends DelegateToFileSystem(site, new ObjectDisk, conf, site.getScheme, false)
