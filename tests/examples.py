"""An instance of each stored file, and strategies that make more. Several tests use them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence

import pyarrow
from hypothesis import strategies as st

from millpond.format.changelog import ChangelogHeader, ChangelogWriter, Op, Record
from millpond.format.codecs import Codec
from millpond.format.composed import ChangelogSource, SnapshotSource
from millpond.format.format_file import CheckpointFormat
from millpond.format.manifest import Manifest, ParentSnapshot, SstRef
from millpond.model.ids import StoreId, VersionId
from millpond.model.json_fields import ColumnFamily, KeyGroupsInfo
from millpond.query.image import Image, OperatorImage, StoreImage
from millpond.query.index import FileEntry, SavepointIndex

KEY_GROUPS = KeyGroupsInfo(max_parallelism=1024, base=8, partitions=8)
UNSCALABLE = KeyGroupsInfo(
    max_parallelism=24,
    base=24,
    partitions=8,
    scalable=False,
    reason="rows of other partitions: ünknown partition key",
)
FORMAT = CheckpointFormat(
    max_parallelism=1024, base=8, created_by="millpond 0.1.0", created_ms=1_700_000_000_000
)

HEADER = ChangelogHeader(
    version=12,
    id="00000000000000c0",
    lineage_base=10,
    lineage=("00000000000000a0", "00000000000000b0"),
    run_id="2f2e6a5e-6d3c-4a52-8f3d-0c4e6f3f1a11",
    store=StoreId(0, 3),
    key_groups=KEY_GROUPS,
    column_families=(ColumnFamily("default", 0),),
    keys=3,
    created_by="millpond 0.1.0",
)

MANIFEST = Manifest(
    store=StoreId(0, 3, "left-keyToNumValues"),
    version=20,
    id="00000000000000f0",
    parent_snapshot=ParentSnapshot(10, "00000000000000a0"),
    created_ms=1_700_000_000_000,
    created_by="millpond 0.1.0",
    key_groups=KEY_GROUPS,
    slots=((384, 512),),
    column_families=(ColumnFamily("default", 0), ColumnFamily("$ttl_x", 1)),
    keys=12_345,
    ssts=(
        SstRef(
            key="sst/" + "1" * 32 + ".sst",
            local_name="000012.sst",
            size_bytes=4096,
            crc32=0xDEADBEEF,
            smallest_hex="018000000000",
            largest_hex="01ff0000ffff",
            entries=12_400,
            deletions=55,
            level=6,
        ),
        SstRef(
            key="sst/" + "2" * 32 + ".sst",
            local_name="000015.sst",
            size_bytes=1,
            crc32=0,
            smallest_hex="",
            largest_hex="ff",
            entries=0,
            deletions=0,
            level=0,
        ),
    ),
    rocksdb_manifest_name="MANIFEST-000005",
    rocksdb_manifest=bytes(range(256)) * 3,
)

SAVEPOINT = SavepointIndex(
    format="native",
    created_by="millpond 0.1.0",
    created_ms=1_700_000_000_000,
    image=Image(
        batch=19,
        planned_batch=20,
        query_id="8a3b7c9e-0000-4000-8000-000000000001",
        provider="org.apache.spark.sql.millpond.MillpondStateStoreProvider",
        spark_checkpoint_format=2,
        partitions=8,
        max_parallelism=1024,
        key_group_base=8,
        watermark_ms=-1,
        timestamp_ms=1_700_000_000_000,
        operators=(
            OperatorImage(
                operator=0,
                name="stateStoreSave",
                stores=(
                    StoreImage(
                        partition=3,
                        name="default",
                        version=20,
                        id="00000000000000f0",
                        keys=12_345,
                        size_bytes=4097,
                    ),
                ),
            ),
        ),
        texts={},
        files=(),
    ),
    files={"metadata": FileEntry(key="metadata", size_bytes=45, crc32=0xDEADBEEF)},
)

COMPOSED = Manifest(
    store=StoreId(0, 5),
    version=22,
    id="00000000000000e0",
    parent_snapshot=None,
    created_ms=1_700_000_000_000,
    created_by="millpond 0.1.0",
    key_groups=KeyGroupsInfo(max_parallelism=1024, base=8, partitions=16),
    slots=((640, 704),),
    column_families=(
        ColumnFamily("default", 0, "point"),
        ColumnFamily("$ttl_x", 1, "range", internal=True),
    ),
    keys=-1,
    ssts=(),
    rocksdb_manifest_name="",
    rocksdb_manifest=b"",
    sources=(
        SnapshotSource(
            partition=5,
            slots=((640, 704),),
            ssts=MANIFEST.ssts,
            rocksdb_manifest_name="MANIFEST-000005",
            rocksdb_manifest=bytes(range(256)) * 3,
        ),
    ),
    changelogs=(
        ChangelogSource(
            partition=5,
            name="21.changelog",
            version=VersionId(21, "00000000000000d0"),
            size_bytes=1234,
            slots=((640, 672), (673, 704)),
        ),
    ),
    composed=True,
)

RECORDS: tuple[Record, ...] = (
    Record(Op.PUT, b"\x01\x80\x00\x00\x00key", b"\x00value"),
    Record(Op.PUT, b"\x01\x80\x00\x00\x00" + b"long" * 100, b"v" * 300),
    Record(Op.DELETE, b"\x01\x80\x00\x00\x00gone", None),
    Record(Op.MERGE, b"\x01\x80\x00\x01\x00list", b"\x00element"),
    Record(Op.PUT, b"", b""),
)
# The golden changelogs of version 1 hold these. Nothing writes their last operation any more.
OLD_RECORDS = (
    *RECORDS[:-1],
    Record(Op.DELETE_RANGE, b"\x01\x80\x00\x00", b"\x01\x80\x00\x01"),
    RECORDS[-1],
)

IDS = st.text("0123456789abcdef", min_size=16, max_size=16)
STORES = st.builds(
    StoreId, st.integers(0, 99), st.integers(0, 65_535), st.sampled_from(["default", "left-x"])
)
FAMILIES = st.lists(
    st.builds(
        ColumnFamily,
        st.text(max_size=20),
        st.integers(0, 65_535),
        st.sampled_from(["", "point"]),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda family: family.id,
).map(tuple)
GROUPS = st.sampled_from([KEY_GROUPS, UNSCALABLE])


@st.composite
def headers(draw: st.DrawFn) -> ChangelogHeader:
    version = draw(st.integers(1, 10**12))
    length = draw(st.integers(1, min(version, 20)))
    lineage = tuple(draw(IDS) for _ in range(length))
    if length == version:
        lineage = ("", *lineage[1:])
    return ChangelogHeader(
        version=version,
        id=draw(IDS),
        lineage_base=version - length,
        lineage=lineage,
        empty_base=draw(st.booleans()),
        run_id=draw(st.text(max_size=40)),
        store=draw(STORES),
        key_groups=draw(GROUPS),
        column_families=draw(FAMILIES),
        keys=draw(st.integers(-1, 10**15)),
        created_by=draw(st.text(max_size=20)),
    )


_BYTES = st.binary(max_size=400)
RECORD_LISTS = st.lists(
    st.one_of(
        st.builds(Record, st.sampled_from([Op.PUT, Op.MERGE]), _BYTES, _BYTES),
        st.builds(Record, st.just(Op.DELETE), _BYTES, st.none()),
    ),
    max_size=30,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    ssts = []
    for i in range(draw(st.integers(0, 5))):
        ssts.append(
            SstRef(
                key=f"sst/{draw(st.integers(0, 2**90)):030x}{i:02x}.sst",
                local_name=f"{i:06d}.sst",
                size_bytes=draw(st.integers(1, 2**40)),
                crc32=draw(st.integers(0, 2**32 - 1)),
                smallest_hex=draw(st.binary(max_size=9)).hex(),
                largest_hex=draw(st.binary(max_size=9)).hex(),
                entries=draw(st.integers(0, 2**40)),
                deletions=draw(st.integers(0, 2**40)),
                level=draw(st.integers(0, 6)),
            )
        )
    bounds = sorted(draw(st.sets(st.integers(0, 24), max_size=6)))
    return Manifest(
        store=draw(STORES),
        version=draw(st.integers(1, 10**12)),
        id=draw(IDS),
        parent_snapshot=draw(st.none() | st.builds(ParentSnapshot, st.integers(1, 99), IDS)),
        created_ms=draw(st.integers(0, 10**13)),
        created_by=draw(st.text(max_size=20)),
        key_groups=draw(GROUPS),
        slots=tuple((a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=False)),
        column_families=draw(FAMILIES),
        keys=draw(st.integers(-1, 10**15)),
        ssts=tuple(ssts),
        rocksdb_manifest_name=f"MANIFEST-{draw(st.integers(0, 10**9)):06d}",
        rocksdb_manifest=draw(st.binary(max_size=500)),
    )


def changelog_bytes(
    header: ChangelogHeader,
    records: Sequence[Record],
    *,
    codec: str = "zstd",
    block_bytes: int = 256 * 1024,
    repeats: bool = False,
) -> bytes:
    """Return a complete changelog.

    With the codec `lz4`, it is a changelog as earlier builds wrote it.
    """
    file = io.BytesIO()
    written = "none" if codec == "lz4" else codec
    writer = ChangelogWriter(file, header, codec=written, block_bytes=block_bytes, repeats=repeats)
    for record in records:
        writer.append(record)
    writer.finish()
    return file.getvalue() if codec == written else _as_lz4(file.getvalue())


def _as_lz4(plain: bytes) -> bytes:
    at = 16 + struct.unpack_from("<I", plain, 8)[0]
    out = plain[:at]
    while (raw_bytes := struct.unpack_from("<I", plain, at)[0]) != 0:
        (records,) = struct.unpack_from("<I", plain, at + 8)
        raw = plain[at + 20 : at + 20 + raw_bytes]
        stored = lz4_compressed(raw)
        codec = Codec.LZ4 if len(stored) < raw_bytes else Codec.NONE
        stored = stored if codec is Codec.LZ4 else raw
        head = struct.pack("<IIIB3s", raw_bytes, len(stored), records, codec, bytes(3))
        out += head + struct.pack("<I", zlib.crc32(head + stored)) + stored
        at += 20 + raw_bytes
    return out + plain[at:]


def lz4_compressed(raw: bytes) -> bytes:
    """Return `raw` as a raw LZ4 block."""
    return bytes(pyarrow.Codec("lz4_raw").compress(raw, asbytes=True))
