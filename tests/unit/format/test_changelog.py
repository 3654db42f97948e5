"""Changelogs: round trips with every codec.

No damage whatever yields wrong records.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ErrorKind, FormatError, InvalidInputError, UnsupportedError
from millpond.format import changelog, codecs, lz4_block
from millpond.format.changelog import (
    ChangelogFooter,
    ChangelogReader,
    ChangelogWriter,
    Op,
    Record,
    read_header,
)
from millpond.format.codecs import Codec
from millpond.model.ids import VersionId
from millpond.model.varint import decode_varint, encode_varint
from tests.examples import HEADER, RECORD_LISTS, RECORDS, changelog_bytes, headers, lz4_compressed

CODECS = ["none", "lz4", "zstd"]


def read(data: bytes) -> tuple[changelog.ChangelogHeader, list[Record], ChangelogFooter | None]:
    reader = ChangelogReader(io.BytesIO(data), name="7.changelog")
    return reader.header, list(reader), reader.footer


@given(headers(), RECORD_LISTS, st.sampled_from(CODECS), st.integers(1, 2000))
def test_round_trip(
    header: changelog.ChangelogHeader, records: Sequence[Record], codec: str, block_bytes: int
) -> None:
    data = changelog_bytes(header, records, codec=codec, block_bytes=block_bytes)
    read_back, found, footer = read(data)
    assert read_back == header and found == list(records)
    assert footer is not None
    assert (footer.records, footer.puts) == (len(records), sum(r.op is Op.PUT for r in records))


def test_header_alone() -> None:
    file = io.BytesIO(changelog_bytes(HEADER, RECORDS))
    assert read_header(file) == HEADER
    assert HEADER.version_id == VersionId(12, HEADER.id)
    assert HEADER.parent == VersionId(11, HEADER.lineage[-1])
    first = replace(HEADER, version=1, lineage_base=0, lineage=("",))
    assert first.parent == VersionId(0)


def test_methods_of_the_writer() -> None:
    file = io.BytesIO()
    writer = ChangelogWriter(file, HEADER)
    writer.put(RECORDS[0].key, b"\x00value")
    writer.put(RECORDS[1].key, b"v" * 300)
    writer.delete(RECORDS[2].key)
    writer.merge(RECORDS[3].key, b"\x00element")
    writer.put(b"", b"")
    footer = writer.finish()
    assert footer.records == 5 and footer.puts == 3
    assert file.getvalue() == changelog_bytes(HEADER, RECORDS)
    with pytest.raises(InvalidInputError):
        writer.put(b"a", b"b")
    with pytest.raises(InvalidInputError):
        writer.finish()


def test_values_where_they_belong() -> None:
    writer = ChangelogWriter(io.BytesIO(), HEADER)
    for record in (
        Record(Op.DELETE, b"k", b"v"),
        Record(Op.PUT, b"k", None),
        Record(Op.DELETE_RANGE, b"k", b"l"),
    ):
        with pytest.raises(InvalidInputError):
            writer.append(record)
    for codec in ("snappy", "lz4"):
        with pytest.raises(InvalidInputError, match="one of none, zstd"):
            ChangelogWriter(io.BytesIO(), HEADER, codec=codec)


def test_incompressible_blocks_are_stored() -> None:
    noise = bytes((i * 7919 + i // 3) % 256 for i in range(64))
    data = changelog_bytes(HEADER, [Record(Op.PUT, noise, b"")], codec="zstd")
    assert noise in data
    assert read(data)[1] == [Record(Op.PUT, noise, b"")]


def outcome(data: bytes) -> list[Record] | ErrorKind:
    """Read everything. Return the records, or the kind of the one error that may come."""
    try:
        return read(data)[1]
    except (FormatError, UnsupportedError) as e:
        assert e.kind in (ErrorKind.CHANGELOG_DAMAGED, ErrorKind.FORMAT_TOO_NEW)
        assert "7.changelog" in str(e)
        return e.kind


@pytest.mark.parametrize("codec", CODECS)
def test_every_single_damaged_byte_is_found(codec: str) -> None:
    data = changelog_bytes(HEADER, RECORDS * 2, codec=codec, block_bytes=500)
    assert outcome(data) == list(RECORDS * 2)
    for position in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= mask
            result = outcome(bytes(damaged))
            # Bytes 4 and 5 are the format number. Another number there is that of a newer file.
            allowed = {
                ErrorKind.CHANGELOG_DAMAGED,
                *([ErrorKind.FORMAT_TOO_NEW] if position in (4, 5) else []),
            }
            assert result in allowed, f"byte {position} ^ {mask:#x}"


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_and_extension_is_found(codec: str) -> None:
    data = changelog_bytes(HEADER, RECORDS, codec=codec, block_bytes=100)
    for length in range(len(data)):
        assert outcome(data[:length]) is ErrorKind.CHANGELOG_DAMAGED, f"cut at {length}"
    for tail in (b"\0", b"\0" * 36, data):
        assert outcome(data + tail) is ErrorKind.CHANGELOG_DAMAGED


@given(st.data())
def test_any_damage_is_found(data: st.DataObject) -> None:
    whole = changelog_bytes(
        HEADER, RECORDS, codec=data.draw(st.sampled_from(CODECS)), block_bytes=200
    )
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    damaged = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    result = outcome(damaged)
    assert isinstance(result, ErrorKind) or damaged == whole


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_changelog(data: bytes) -> None:
    assert isinstance(outcome(data), ErrorKind)
    assert isinstance(outcome(b"MPCL\x01\0\0\0" + data), ErrorKind)


def test_a_length_of_gigabytes_does_not_allocate_them() -> None:
    data = changelog_bytes(HEADER, RECORDS, codec="none")
    block = 12 + struct.unpack_from("<I", data, 8)[0] + 4
    huge = data[: block + 4] + struct.pack("<I", 0xFFFF_FFFF) + data[block + 8 :]
    assert outcome(huge) is ErrorKind.CHANGELOG_DAMAGED


# ---- files whose sums are right and whose content is not: a buggy or hostile writer


def block(
    raw: bytes,
    records: int,
    *,
    codec: int = 0,
    stored: bytes | None = None,
    reserved: bytes = b"\0\0\0",
) -> bytes:
    stored = raw if stored is None else stored
    head = struct.pack("<IIIB3s", len(raw), len(stored), records, codec, reserved)
    return head + struct.pack("<I", zlib.crc32(head + stored)) + stored


def footer(records: int, puts: int, raw_bytes: int) -> bytes:
    tail = struct.pack("<I4sQQQ", 0, b"MPCE", records, puts, raw_bytes)
    return tail + struct.pack("<I", zlib.crc32(tail))


def with_header(json_text: bytes, *, flags: int = 0, rest: bytes | None = None) -> bytes:
    head = struct.pack("<4sHHI", b"MPCL", 1, flags, len(json_text)) + json_text
    return head + struct.pack("<I", zlib.crc32(head)) + (footer(0, 0, 0) if rest is None else rest)


HEAD = changelog_bytes(HEADER, [])[:-36]
PUT = b"\x01\x01k\x01v"


def test_hand_made_file_is_right() -> None:
    assert outcome(HEAD + block(PUT, 1) + footer(1, 1, 5)) == [Record(Op.PUT, b"k", b"v")]


@pytest.mark.parametrize(
    "rest",
    [
        block(PUT, 2) + footer(2, 1, 5),
        block(PUT, 0) + footer(0, 1, 5),
        block(PUT, 1) + footer(1, 0, 5),
        block(PUT, 1) + footer(1, 2, 5),
        block(PUT, 1) + footer(2, 1, 5),
        block(PUT, 1) + footer(1, 1, 6),
        block(PUT, 1, reserved=b"\0\0\1") + footer(1, 1, 5),
        block(b"\x05\x01k", 1) + footer(1, 0, 3),
        block(b"\x00\x01k", 1) + footer(1, 0, 3),
        block(b"\x02\x02k", 1) + footer(1, 0, 3),
        block(b"\x01\x01k", 1) + footer(1, 1, 3),
        block(b"\x01\x01k\x05v", 1) + footer(1, 1, 5),
        block(b"\x02" + b"\xff" * 9 + b"\x01", 1) + footer(1, 0, 11),
        block(b"\x02\xff", 1) + footer(1, 0, 2),
        block(PUT, 1, stored=PUT + b"x") + footer(1, 1, 5),
        block(PUT, 1, stored=PUT[:-1]) + footer(1, 1, 5),
        block(PUT, 1, codec=1, stored=b"\x40\x01\x01k\x01") + footer(1, 1, 5),
        block(PUT, 1, codec=1, stored=b"\xff\xff\xff") + footer(1, 1, 5),
        block(PUT, 1, codec=2, stored=b"not zstd") + footer(1, 1, 5),
    ],
)
def test_wrong_content_with_right_sums(rest: bytes) -> None:
    assert outcome(HEAD + rest) is ErrorKind.CHANGELOG_DAMAGED


@pytest.mark.parametrize(
    ("codec", "stored", "raw_bytes"),
    [
        (0, PUT, 6),
        (1, b"\x1f\x01" + b"\0" * 18, 1 << 30),  # so many bytes of LZ4 hold at most 5100
        (1, b"\x1f\x01" + b"\0" * 18, 5_101),
        (2, zstandard.compress(b"x" * 100), 1 << 30),
        (2, zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100), 1 << 30),
        (2, zstandard.compress(b"x" * 100), 101),
        (2, zstandard.compress(b"x" * 100), 99),
        (1, b"\0" * (5 << 20), (1 << 30) + 1),
        (1, b"", 1),
    ],
)
def test_a_block_that_cannot_stand_for_so_much_is_not_inflated(
    codec: int, stored: bytes, raw_bytes: int
) -> None:
    head = struct.pack("<IIIB3s", raw_bytes, len(stored), 1, codec, b"\0\0\0")
    data = (
        HEAD
        + head
        + struct.pack("<I", zlib.crc32(head + stored))
        + stored
        + footer(1, 1, raw_bytes)
    )
    with pytest.raises(FormatError, match=r"cannot stand for|instead of"):
        list(changelog.ChangelogReader(io.BytesIO(data)))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_the_most_that_a_block_can_stand_for(codec: str) -> None:
    """Compression leaves least of zeros. The reader must still take them."""
    records = [Record(Op.PUT, b"k", bytes(size)) for size in (1, 100, 10_000, 1 << 20, 1 << 25)]
    data = changelog_bytes(HEADER, records, codec=codec)
    assert outcome(data) == records


def test_a_record_that_no_reader_would_take_is_not_written() -> None:
    gigabyte = bytes(codecs.MAX_BLOCK_BYTES)  # zeros that nobody touches need no memory
    writer = ChangelogWriter(io.BytesIO(), HEADER, codec="none")
    for write in (writer.put, writer.merge):
        with pytest.raises(InvalidInputError) as caught:
            write(b"key", gigabyte)
        assert caught.value.kind is ErrorKind.ROW_TOO_LARGE
    writer.put(b"key", b"value")
    assert writer.finish().puts == 1


def test_what_only_a_newer_version_knows() -> None:
    assert outcome(HEAD + block(PUT, 1, codec=3) + footer(1, 1, 5)) is ErrorKind.FORMAT_TOO_NEW
    header = HEAD[12:-4]
    assert outcome(with_header(header)) == []
    for flags in (2, 3, 0x8000):
        assert outcome(with_header(header, flags=flags)) is ErrorKind.FORMAT_TOO_NEW


def test_a_header_says_whether_keys_repeat() -> None:
    """A reader that does not know the flag must not read the file.

    Files from before the flag have merges without it.
    """
    records = [
        Record(Op.PUT, b"key1", b"a"),
        Record(Op.MERGE, b"key1", b"b"),
        Record(Op.PUT, b"key1", b"c"),
    ]
    data = {repeats: changelog_bytes(HEADER, records, repeats=repeats) for repeats in (False, True)}
    assert [struct.unpack_from("<H", data[repeats], 6) for repeats in (False, True)] == [(0,), (1,)]
    assert outcome(data[False]) == records == outcome(data[True])


def test_a_damaged_flag_is_damage() -> None:
    assert outcome(HEAD[:6] + b"\x04" + HEAD[7:] + footer(0, 0, 0)) is ErrorKind.CHANGELOG_DAMAGED


def test_a_newer_format() -> None:
    assert outcome(HEAD[:4] + b"\x02\0" + HEAD[6:]) is ErrorKind.FORMAT_TOO_NEW


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ('"version":12', '"version":0'),
        ('"version":12', '"version":13'),
        ('"version":12', '"version":"12"'),
        ('"version":12', '"version":true'),
        ('"version":12', '"versions":12'),
        ('"lineage_base":10', '"lineage_base":9'),
        ('"00000000000000a0",', ""),
        ('"00000000000000a0"', '"nonsense"'),
        ('"id":"00000000000000c0"', '"id":""'),
        ('"partition":3', '"partition":-3'),
        ('"column_families":[', '"column_families":[{"name":"other","id":0},'),
        ('"name":"default"}', '"name":"../x"}'),
        ('"keys":3', '"keys":-2'),
        ('"keys":3', '"keys":null'),
        ('"empty_base":false', '"empty_base":0'),
        ('"max_parallelism":1024', '"max_parallelism":65537'),
        ('"run_id":', '"run_id":7,"x":'),
        ("{", "["),
    ],
)
def test_wrong_headers_with_right_sums(field: str, text: str) -> None:
    header = HEAD[12:-4].decode()
    assert field in header
    assert (
        outcome(with_header(header.replace(field, text, 1).encode())) is ErrorKind.CHANGELOG_DAMAGED
    )


def test_unknown_header_fields_are_ignored() -> None:
    header = HEAD[12:-4].decode().replace("{", '{"new":[1],', 1).encode()
    assert read(with_header(header))[0] == HEADER


# ---- codecs


@given(st.binary(min_size=1, max_size=5000), st.integers(1, 4))
def test_lz4_in_python(raw: bytes, repeat: int) -> None:
    raw = raw * repeat
    stored = lz4_compressed(raw)
    assert (
        lz4_block.decompress(stored, len(raw))
        == raw
        == codecs.decompress(Codec.LZ4, stored, len(raw))
    )
    for wrong in (len(raw) - 1, len(raw) + 1):
        for decompress in (lz4_block.decompress, lambda s, n: codecs.decompress(Codec.LZ4, s, n)):
            with pytest.raises(ValueError):
                decompress(stored, wrong)


@given(st.binary(max_size=200), st.integers(0, 1000))
def test_lz4_in_python_never_goes_wrong(data: bytes, raw_bytes: int) -> None:
    try:
        assert len(lz4_block.decompress(data, raw_bytes)) == raw_bytes
    except ValueError:
        return


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {codec: changelog_bytes(HEADER, RECORDS * 9, codec=codec) for codec in CODECS}
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for codec in CODECS:
        assert outcome(files[codec]) == list(RECORDS * 9)


@given(st.integers(0, 2**35 - 1))
def test_varints(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(encoded, 0) == (value, len(encoded))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 6), st.data())
def test_blocks_of_equal_puts(
    key_bytes: int, value_bytes: int, count: int, data: st.DataObject
) -> None:
    sizes = [(key_bytes, value_bytes)] * count
    if data.draw(st.booleans()):  # lengths that differ, and may add up to the same sum
        sizes[-1] = (
            key_bytes + data.draw(st.integers(0, 1)),
            max(0, value_bytes - data.draw(st.integers(0, 1))),
        )
    puts = [
        (data.draw(st.binary(min_size=k, max_size=k)), data.draw(st.binary(min_size=v, max_size=v)))
        for k, v in sizes
    ]
    raw = b"".join(b"\1" + encode_varint(len(k)) + k + encode_varint(len(v)) + v for k, v in puts)
    found = changelog.parse_puts(raw, count)
    if found is not None:
        assert list(zip(found.keys, found.values, strict=True)) == puts
    assert (found is not None) == (count > 1 and len(set(sizes)) == 1)
    assert (
        changelog.parse_puts(raw[:-1], count) is None
        and changelog.parse_puts(b"\2" + raw[1:], count) is None
    )


def test_packed_puts_are_put_of_each() -> None:
    puts = [(struct.pack(">I", i), b"v" * 130) for i in range(1000)]
    files = []
    for packed in (False, True):
        file = io.BytesIO()
        writer = ChangelogWriter(file, HEADER, codec="none", block_bytes=4096)
        writer.put(b"first", b"")
        if packed:
            one = [b"\1" + encode_varint(4) + k + encode_varint(130) + v for k, v in puts]
            writer.put_packed(memoryview(b"".join(one)), len(one))
        else:
            writer.put_all(puts)
        assert writer.finish().puts == 1001
        files.append(file.getvalue())
    assert files[0] == files[1]


def test_put_all_is_put_of_each() -> None:
    puts = [(b"k" * (i % 300), b"v" * (i * 7 % 200)) for i in range(1000)]
    files = []
    for many in (False, True):
        file = io.BytesIO()
        writer = ChangelogWriter(file, HEADER, codec="none", block_bytes=4096)
        writer.put(b"first", b"")
        if many:
            writer.put_all(puts)
        else:
            for key, value in puts:
                writer.put(key, value)
        writer.delete(b"last")
        assert writer.finish().puts == 1001
        files.append(file.getvalue())
    assert files[0] == files[1]


def test_blocks_of_several_writers_make_one_changelog() -> None:
    parts = []
    for name in (b"a", b"b"):
        blocks = io.BytesIO()
        part = ChangelogWriter(blocks, None)
        part.put_all([(name + bytes([i]), b"v") for i in range(3)])
        totals = part.end_blocks()
        with pytest.raises(InvalidInputError):
            part.put(b"k", b"v")
        with pytest.raises(InvalidInputError):
            part.put_all([])
        blocks.seek(0)
        parts.append((blocks, totals))
    whole = io.BytesIO()
    writer = ChangelogWriter(whole, HEADER)
    for blocks, totals in parts:
        writer.take_blocks(blocks, totals)
    writer.finish()
    whole.seek(0)
    assert [record.key for record in ChangelogReader(whole)] == [
        n + bytes([i]) for n in (b"a", b"b") for i in range(3)
    ]
