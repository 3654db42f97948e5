"""Key-group arithmetic: exhaustive for small sizes, sampled for large ones.

The Scala side must yield the same vectors.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import ErrorKind, InvalidInputError
from millpond.model.key_groups import KeyGroups, base_of, default_max_parallelism, key_groups_for
from tests.conftest import Golden

# (state partitions at birth, requested max parallelism, partitions to show)
SHAPES: list[tuple[int, int | None, int]] = [
    (1, 1, 1),
    (1, None, 1),
    (2, 12, 2),
    (3, 24, 6),
    (4, 60, 4),
    (4, 60, 20),
    (4, 64, 16),
    (5, None, 5),
    (8, None, 8),
    (8, None, 32),
    (8, None, 2),
    (6, 96, 4),
    (7, 7, 7),
    (12, 144, 48),
    (200, 800, 200),
]


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def bases(max_parallelism: int) -> list[int]:
    return [b for b in divisors(max_parallelism) if (q := max_parallelism // b) & (q - 1) == 0]


def brute_slot(group: int, max_parallelism: int, base: int) -> int:
    """Compute a slot by the definition in docs/reference/format.md, with the text of its bits."""
    bits = (max_parallelism // base).bit_length() - 1
    reversed_bits = int(format(group // base, f"0{bits}b")[::-1], 2) if bits else 0
    return (group % base) * (1 << bits) + reversed_bits


def test_every_small_shape() -> None:
    for max_parallelism in range(1, 201):
        for base in bases(max_parallelism):
            groups = KeyGroups(max_parallelism, base)
            slots = [groups.slot(g) for g in range(max_parallelism)]
            assert slots == [brute_slot(g, max_parallelism, base) for g in range(max_parallelism)]
            assert sorted(slots) == list(range(max_parallelism))
            assert [groups.group(s) for s in slots] == list(range(max_parallelism))
            for partitions in divisors(max_parallelism):
                owned_slots: list[int] = []
                for partition in range(partitions):
                    owned = groups.groups_of(partition, partitions)
                    assert all(
                        groups.partition_of(g, partitions) == partition == g % partitions
                        for g in owned
                    )
                    ranges = groups.slot_ranges(partition, partitions)
                    from_ranges = [s for start, end in ranges for s in range(start, end)]
                    assert from_ranges == sorted(groups.slot(g) for g in owned)
                    assert all(start < end for start, end in ranges)
                    assert all(a[1] < b[0] for a, b in pairwise(ranges)), (
                        "ranges that touch are merged"
                    )
                    owned_slots += from_ranges
                assert sorted(owned_slots) == list(range(max_parallelism))


def test_doubling_halves_one_contiguous_range() -> None:
    for base in (1, 3, 8, 10):
        groups = KeyGroups(base * 64, base)
        for bits in range(6):
            partitions = base << bits
            for partition in range(partitions):
                ((start, end),) = groups.slot_ranges(partition, partitions)
                halves = [
                    groups.slot_ranges(p, partitions * 2)[0]
                    for p in (partition, partition + partitions)
                ]
                assert halves == [(start, (start + end) // 2), ((start + end) // 2, end)]


@given(st.integers(0, 16), st.data())
def test_large_shapes(exponent: int, data: st.DataObject) -> None:
    max_parallelism = data.draw(st.integers(1, 65_536 >> exponent)) << exponent
    base = max_parallelism >> data.draw(st.integers(0, exponent))
    groups = KeyGroups(max_parallelism, base)
    group = data.draw(st.integers(0, max_parallelism - 1))
    assert groups.slot(group) == brute_slot(group, max_parallelism, base)
    assert groups.group(groups.slot(group)) == group
    partitions = data.draw(st.sampled_from(divisors(max_parallelism)))
    owner = groups.partition_of(group, partitions)
    assert (
        sum(end - start for start, end in groups.slot_ranges(owner, partitions))
        == max_parallelism // partitions
    )
    assert any(
        start <= groups.slot(group) < end for start, end in groups.slot_ranges(owner, partitions)
    )


def test_default_max_parallelism() -> None:
    assert [default_max_parallelism(n) for n in (1, 8, 200, 512, 513, 1000, 40_000, 65_536)] == [
        128,
        1024,
        25_600,
        65_536,
        32_832,
        64_000,
        40_000,
        65_536,
    ]
    for partitions in range(1, 65_537):
        result = default_max_parallelism(partitions)
        quotient, rest = divmod(result, partitions)
        assert rest == 0 and quotient & (quotient - 1) == 0 and quotient <= 128 and result <= 65_536
        assert quotient == 128 or result * 2 > 65_536


@pytest.mark.parametrize("partitions", [0, -1, 65_537])
def test_impossible_partition_counts(partitions: int) -> None:
    with pytest.raises(InvalidInputError) as caught:
        key_groups_for(partitions, None)
    assert caught.value.kind is ErrorKind.MAX_PARALLELISM_INVALID


def test_key_groups_for() -> None:
    assert key_groups_for(8, None) == KeyGroups(1024, 8)
    assert key_groups_for(8, 8) == KeyGroups(8, 8)
    assert key_groups_for(8, 24) == KeyGroups(24, 24)
    assert key_groups_for(8, 96) == KeyGroups(96, 24)
    for partitions in range(1, 40):
        for quotient in range(1, 40):
            base = base_of(partitions * quotient, partitions)
            odd = base // partitions
            assert (
                base % partitions == 0
                and odd % 2 == 1
                and KeyGroups(partitions * quotient, base).bits >= 0
            )


@pytest.mark.parametrize(
    ("partitions", "requested", "nearest"),
    [
        (8, 1001, ["1000", "1008"]),
        (8, 3, ["8"]),
        (8, 0, ["8"]),
        (8, -5, ["8"]),
        (8, 65_537, ["65536"]),
        (7, 65_536, ["65534"]),
        (200, 100_000, ["65400"]),
    ],
)
def test_refused_max_parallelism_names_valid_values(
    partitions: int, requested: int, nearest: list[str]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        key_groups_for(partitions, requested)
    assert caught.value.kind is ErrorKind.MAX_PARALLELISM_INVALID
    assert str(requested) in str(caught.value)
    for value in nearest:
        assert value in caught.value.hint
        assert key_groups_for(partitions, int(value)).max_parallelism == int(value)


@pytest.mark.parametrize(
    ("max_parallelism", "base"), [(0, 1), (65_537, 65_537), (12, 5), (12, 4), (12, 0), (12, 24)]
)
def test_impossible_key_groups(max_parallelism: int, base: int) -> None:
    with pytest.raises(InvalidInputError):
        KeyGroups(max_parallelism, base)


def test_out_of_range_arguments() -> None:
    groups = KeyGroups(16, 4)
    for call in (
        lambda: groups.slot(16),
        lambda: groups.group(-1),
        lambda: groups.groups_of(4, 4),
        lambda: groups.slot_ranges(0, 3),
        lambda: groups.partition_of(16, 4),
        lambda: groups.partition_of(0, 0),
    ):
        with pytest.raises(InvalidInputError):
            call()


def vectors() -> bytes:
    shapes = []
    for born_with, requested, partitions in SHAPES:
        groups = key_groups_for(born_with, requested)
        shapes.append(
            {
                "max_parallelism": groups.max_parallelism,
                "base": groups.base,
                "partitions": partitions,
                "slots": [groups.slot(group) for group in range(groups.max_parallelism)],
                "ranges": [
                    [list(r) for r in groups.slot_ranges(p, partitions)] for p in range(partitions)
                ],
            }
        )
    return ("[\n" + ",\n".join(json.dumps(shape) for shape in shapes) + "\n]\n").encode()


def test_vectors_shared_with_the_shim(golden: Golden, repository: Path) -> None:
    """The tests of the Scala side read the same file."""
    golden.check(repository / "tests/vectors/keygroups.json", vectors())
