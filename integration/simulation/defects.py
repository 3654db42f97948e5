"""Defects that the simulation must find, as edits of the sources."""

from __future__ import annotations

from dataclasses import dataclass

from integration.simulation.schedule import ERASING

_SHIM = "jvm-shim/src/main/scala/"
_PACKAGE = "python/src/millpond/"


@dataclass(frozen=True)
class Mutant:
    """A defect.

    `edits`: a file, a text that is in it once, and the text that replaces it. `again`: an earlier
    version had this defect. `first`: the first seed that may find it.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    again: bool = False
    first: int = 1

    @property
    def is_scala(self) -> bool:
        return any(file.endswith(".scala") for file, _, _ in self.edits)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "whether a blind delete is logged depends on what memory holds at the commit",
        (
            (
                _SHIM + "memory/Table.scala",
                "if (old == 0L) is(now, Blind) else",
                "if (old == 0L) !complete else",
            ),
        ),
        again=True,
    ),
    Mutant(
        "a blind record that is taken back leaves a table that counts as complete",
        (
            (
                _SHIM + "memory/Table.scala",
                "if (is(current, Blind)) lack()",
                "if (current == 0L) lack()",
            ),
        ),
        again=True,
    ),
    Mutant(
        "a flush that is tried again begins anew",
        (
            (
                _SHIM + "disk/Flush.scala",
                "gathered.foreach { case (c, position) => c.flushedBlocks = position }",
                (
                    "gathered.foreach { case (c, position) => if (position < 0) c.flushedBlocks ="
                    " position }"
                ),
            ),
        ),
        again=True,
    ),
    Mutant(
        "a session that has ended is served",
        (
            (
                _SHIM + "engine/StoreEngine.scala",
                "if (holder ne session) throw",
                "if (session == null) throw",
            ),
        ),
        again=True,
    ),
    Mutant(
        "no table is rebuilt while iterators are open",
        (
            (
                _SHIM + "memory/Table.scala",
                'require(touched.size == 0, "rebuild',
                'require(touched.size == 0 && openIterators == 0, "rebuild',
            ),
        ),
        again=True,
    ),
    Mutant(
        "a key is touched before there is memory for it",
        (
            (
                _SHIM + "memory/Table.scala",
                "      val record = enter(base, offset, length, hash, keySlot, prefixLength, "
                """valueBase, valueOffset,
        valueLength, tail)
      Platform.putInt(null, record + BatchAt, batch)
      if (!knowsAll) setFlag(record, Blind)
      if (appended) setFlag(record, Appended)
      Platform.putInt(null, record + TouchAt, touched.add(record, 0L))
""",
                "      val record = create(base, offset, length, hash, keySlot, valueBase, "
                """valueOffset, valueLength,
        tail = tail)
      Platform.putInt(null, record + BatchAt, batch)
      if (!knowsAll) setFlag(record, Blind)
      if (appended) setFlag(record, Appended)
      Platform.putInt(null, record + TouchAt, touched.add(record, 0L))
      slots.reserve()
      slots.insert(record, hash)
      if (chained) chains.link(record, prefixLength)
      else if (sorted) index.insert(record, null, record + header, length)
      if (valueLength < 0) absent += 1
""",
            ),
        ),
        again=True,
    ),
    Mutant(
        "a provider of an older run collects",
        (
            (
                _PACKAGE + "agent/collecting.py",
                "        if not _is_still_proven(context, anchor):\n            return\n"
                "        context.storage",
                "        context.storage",
            ),
            (
                _PACKAGE + "agent/collecting.py",
                "proven = anchor.version > 0 and _is_proven(context, anchor)",
                "proven = anchor.version > 0",
            ),
            (
                _PACKAGE + "store/collection/plan.py",
                "                or info.modified_ms > old_enough\n            ):\n",
                "            ):\n",
            ),
        ),
        again=True,
    ),
    Mutant(
        "a rescale leaves the changelog of a batch that was never committed",
        ((_PACKAGE + "operations/rescale/write.py", "    storage.delete(writing.stale)\n", ""),),
        again=True,
    ),
    Mutant(
        "a family that was made again is taken for the one that was removed",
        (
            (
                _SHIM + "engine/Replay.scala",
                "(other.name == name || other.id == id) &&",
                "other.id == id &&",
            ),
        ),
        again=True,
    ),
    Mutant(
        "a snapshot lists the families of the running batch",
        (
            (
                _SHIM + "engine/Snapshots.scala",
                "describeFamilies(store.families, families, asOf = now.flushed.version)",
                "describeFamilies(store.families, families)",
            ),
        ),
        again=True,
    ),
    Mutant(
        "deletes are left out of the changelog",
        (
            (
                _SHIM + "engine/BatchLog.scala",
                "else if (change == Op.Delete) log",
                "else if (change < 0) log",
            ),
        ),
    ),
    Mutant(
        "a flush writes no deletes",
        (
            (
                _SHIM + "disk/Flush.scala",
                "val keepDeletes = !disk.isEmpty",
                "val keepDeletes = disk == null",
            ),
        ),
    ),
    Mutant(
        "an SST is collected without a grace period, and nobody looks whether it is still there",
        (
            (
                _PACKAGE + "store/collection/plan.py",
                "if waited and now_ms - info.modified_ms >= grace_ms:",
                "if now_ms >= 0:",
            ),
            (
                _PACKAGE + "store/snapshot/upload.py",
                "    missing = _missing(files, published, told.condemned)\n",
                "    missing = frozenset[str]()\n",
            ),
        ),
    ),
    Mutant(
        "retention keeps one version too few",
        (
            (
                _PACKAGE + "store/collection/plan.py",
                "anchor.version - retain_versions + 1, now_ms",
                "anchor.version - retain_versions + 2, now_ms",
            ),
        ),
    ),
    Mutant(
        "a store's locks are left out",
        (
            (
                _SHIM + "base/StoreLock.scala",
                "    acquire()\n    try work\n    finally lock.unlock()\n",
                "    if (work == null) acquire()\n    work\n",
            ),
        ),
    ),
    Mutant(
        "a store in memory is taken for another attempt's version",
        (
            (
                _SHIM + "engine/StoreEngine.scala",
                "def same(a: String): Boolean = wantedId.forall(_ == a)",
                "def same(a: String): Boolean = a != null",
            ),
        ),
    ),
    Mutant(
        "a restore appends what a merge added twice",
        (
            (
                _SHIM + "engine/Replay.scala",
                "        rows.replayMerge(f, slot, block, at, length, hash, found, valueAt,",
                "        for (_ <- 1 to 2) rows.replayMerge(f, slot, block, at, length, hash,\n"
                "          f.table.find(block, at, length, hash), valueAt,",
            ),
        ),
    ),
    Mutant(
        "going back one version forgets a family",
        (
            (
                _SHIM + "engine/StoreEngine.scala",
                "      families.values.forEach(_.table.rollback())\n",
                "      families.all.drop(1).foreach(_.table.rollback())\n",
            ),
        ),
    ),
    Mutant(
        "the key count is not taken back with the version",
        (
            (
                _SHIM + "engine/Committed.scala",
                "keys = keysBefore.get,",
                "keys = keys,",
            ),
        ),
    ),
    Mutant(
        "rows that the disk tier has not are evicted",
        (
            (
                _SHIM + "engine/Pressure.scala",
                "f.table.evict(left, flushed)",
                "f.table.evict(left, Int.MaxValue)",
            ),
        ),
    ),
    Mutant(
        "a snapshot is taken above what is proven committed",
        (
            (
                _SHIM + "engine/Snapshots.scala",
                "(now.anchor, now.pending.filter(_.version <= now.anchor.version))",
                "(Point(now.version, now.id, now.keys), now.pending)",
            ),
        ),
    ),
    Mutant(
        "a version is taken back from memory although the disk tier has a part of it",
        (
            (
                _SHIM + "engine/StoreEngine.scala",
                "version == wanted + 1 && pressure.spilledVersion <= wanted && now",
                "version == wanted + 1 && now",
            ),
        ),
    ),
    Mutant(
        "a row is admitted from the disk over what the batch deleted",
        (
            (
                _SHIM + "engine/WarmScan.scala",
                "if (f.table.find(null, keys.at, keys.length, hash) == 0L) {",
                (
                    "if ({ val r = f.table.find(null, keys.at, keys.length, hash); r == 0L ||"
                    " !f.table.isPresent(r) }) {"
                ),
            ),
        ),
    ),
    Mutant(
        "single reads of the disk tier do not hear of the files of later flushes",
        (
            (
                _SHIM + "disk/PointReads.scala",
                "if (view != null) view = SortedRun.of(made) +: view",
                "",
            ),
            (
                _SHIM + "disk/PointReads.scala",
                "        else if (view == null) close(made)\n",
                "        else close(made)\n",
            ),
        ),
    ),
    Mutant(
        "a file that comes while the tables of the others are made is forgotten",
        (
            (
                _SHIM + "disk/PointReads.scala",
                "val newest = now.later ++ first",
                "val newest = first",
            ),
        ),
    ),
    Mutant(
        "of the files of flushes single reads ask the oldest first",
        (
            (
                _SHIM + "disk/PointReads.scala",
                "first.sortBy(-_.meta.largestSeqno)",
                "first.sortBy(_.meta.largestSeqno)",
            ),
        ),
    ),
    Mutant(
        "maintenance closes a RocksDB that somebody uses",
        ((_SHIM + "disk/LocalRocks.scala", "users == 0 && db != null", "db != null"),),
    ),
    Mutant(
        "a manifest is published before its SSTs, and an upload that fails is overlooked",
        (
            (
                _PACKAGE + "store/snapshot/upload.py",
                "        refs[file.name] = _upload(files, request.db_checkpoint, file, cache)\n",
                "        try:\n"
                "            refs[file.name] = _upload(files, request.db_checkpoint, file, cache)\n"
                "        except UnavailableError:\n"
                "            refs[file.name] = describe(file, layout.new_sst_name(), 1)\n",
            ),
            (
                _PACKAGE + "store/snapshot/upload.py",
                "    missing = _missing(files, published, told.condemned)\n",
                "    missing = frozenset[str]()\n",
            ),
        ),
    ),
    Mutant(
        "a snapshot of an erased version that an executor publishes late stays",
        (
            (
                _PACKAGE + "store/snapshot/upload.py",
                "    if manifest.version <= told.erased_version:\n",
                "    if manifest.version <= 0:\n",
            ),
            (
                _PACKAGE + "agent/service.py",
                "version.version <= stored.erased_version(store.operator)",
                "version.version <= 0",
            ),
        ),
        first=ERASING,
    ),
    Mutant(
        "an erasure deletes what a query has committed meanwhile",
        (
            (
                _PACKAGE + "operations/erase/run.py",
                "            refuse_run_on(place, journal)\n            late = ",
                "            late = ",
            ),
            (
                _PACKAGE + "operations/erase/run.py",
                "matcher, found)\n            refuse_run_on(place, journal)\n",
                "matcher, found)\n",
            ),
            (
                _PACKAGE + "operations/erase/run.py",
                "            refuse_run_on(place, journal)\n            end(",
                "            end(",
            ),
            (
                _PACKAGE + "operations/erase/places.py",
                "if last is None or version.version <= last",
                "if last is None or version.version > 0",
            ),
        ),
        again=True,
        first=ERASING,
    ),
    Mutant(
        "a place has no mark while a key is erased from it",
        (
            (
                _PACKAGE + "operations/erase/places.py",
                "    storage.put_bytes(layout.FORMAT_KEY, encode_format(value, erasing=True))\n",
                "    storage.put_bytes(layout.FORMAT_KEY, encode_format(value))\n",
            ),
        ),
        first=ERASING,
    ),
    Mutant(
        "changelogs that are written anew count the erased rows",
        (
            (
                _PACKAGE + "operations/erase/plan.py",
                "keys=described.keys - sum(gone.values())",
                "keys=described.keys",
            ),
        ),
        first=ERASING,
    ),
)
