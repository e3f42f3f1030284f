"""Packed labels answer what a dict of them would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.model.sharing import PackedLabels

WORDS = st.text(alphabet="ab\0é\U0001f600/.", max_size=3)
MAPS = st.dictionaries(WORDS, WORDS, max_size=12)


@given(MAPS, st.lists(WORDS))
def test_they_answer_as_a_dict_does(labels: dict[str, str], keys: list[str]) -> None:
    packed = PackedLabels(labels)
    assert len(packed) == len(labels)
    assert dict(packed.items()) == labels == packed.unpacked()
    for key in (*keys, *labels):
        assert packed.get(key) == labels.get(key)
        assert (key in packed) == (key in labels)


@given(MAPS, MAPS)
def test_they_are_equal_to_what_has_the_same_labels(one: dict[str, str], other: dict[str, str]) -> None:
    assert (PackedLabels(one) == PackedLabels(other)) == (one == other) == (PackedLabels(one) == other)


def test_what_is_not_there() -> None:
    with pytest.raises(KeyError):
        PackedLabels({"a": "b"})["c"]
    assert PackedLabels({}) != 7
