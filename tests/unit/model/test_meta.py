"""Names of objects as people read them in lists."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gracectl.model.meta import natural_key


def test_numbers_in_names_count_as_numbers() -> None:
    expected = [
        *("ip-10-0-2-9.internal", "ip-10-0-10-1.internal"),
        *("node", "node-0", "node-1", "node-02", "node-2", "node-2a", "node-10", "node-99999999999999999999"),
        *("shop-a/web-10", "shop/web-2", "shop/web-10"),
    ]
    shuffled = random.Random(7).sample(expected, len(expected))
    assert sorted(shuffled, key=natural_key) == expected


@given(st.lists(st.text(alphabet="a0129-/", max_size=6), unique=True))
def test_different_names_never_tie(names: list[str]) -> None:
    assert len({natural_key(name) for name in names}) == len(names)
