"""Layers of changes are what their changes make one after the other."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millpond.store.layers import Layer, Layers, Missing, looked_up, stacked
from millpond.store.overlay import Appended, Change

_KEYS = st.sampled_from([b"a", b"ab", b"abc", b"b", b"ba", b"c"])
_CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.none(), st.binary(max_size=3), st.binary(max_size=3).map(Appended)
)


@given(st.lists(st.dictionaries(_KEYS, _CHANGES), max_size=8), st.dictionaries(_KEYS, st.binary()))
def test_layers(commits: list[dict[bytes, Change]], below: dict[bytes, bytes]) -> None:
    layers: Layers = ()
    expected = dict(below)
    for commit in commits:
        layers = stacked(layers, Layer(commit))
        for key, change in commit.items():
            if isinstance(change, Appended):
                expected[key] = expected.get(key, b"") + change.value
            elif change is None:
                expected.pop(key, None)
            else:
                expected[key] = change
    found = {}
    for key in (b"a", b"ab", b"abc", b"b", b"ba", b"c"):
        made = looked_up(layers, key)
        if isinstance(made, Missing):
            if key in below:
                found[key] = below[key]
        elif isinstance(made, Appended):
            found[key] = below.get(key, b"") + made.value
        elif isinstance(made, bytes):
            found[key] = made
    assert found == expected
    for prefix in (b"", b"a", b"ab", b"b", b"d"):
        for layer in layers:
            assert list(layer.starting_with(prefix)) == sorted(
                key for key in layer.changes if key.startswith(prefix)
            )
    sizes = [len(layer.changes) for layer in layers]
    assert all(upper * 2 < lower for upper, lower in pairwise(sizes))
