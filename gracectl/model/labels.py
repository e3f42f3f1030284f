"""Label maps of an unusual size, stored as text.

An API server accepts 90,000 labels on a pod. As a dict they take 20 MB, as text little more than one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain, pairwise


class PackedLabels(Mapping[str, str]):
    """A map for reading only. Invariant: it answers what the dict that it was made from would answer, more slowly."""

    __slots__ = ("__weakref__", "_starts", "_text")

    def __init__(self, labels: Mapping[str, str]) -> None:
        # Sorted by key; the server writes them so, then this takes no time.
        words = tuple(chain.from_iterable(sorted(labels.items())))
        self._text = "".join(words)
        self._starts = array("I", accumulate(map(len, words), initial=0))

    def __getitem__(self, key: str) -> str:
        number = bisect_left(range(len(self)), key, key=self._key)
        if number == len(self) or self._key(number) != key:
            raise KeyError(key)
        return self._word(2 * number + 1)

    def __iter__(self) -> Iterator[str]:
        return map(self._key, range(len(self)))

    def __len__(self) -> int:
        return len(self._starts) // 2

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedLabels):
            return self._text == other._text and self._starts == other._starts
        return isinstance(other, Mapping) and self.unpacked() == other

    __hash__ = None  # type: ignore[assignment]  # as of every map

    def __repr__(self) -> str:
        return f"<{len(self):,} labels>"

    def unpacked(self) -> dict[str, str]:
        """All of them, for as long as many are looked up."""
        words = iter([self._text[start:end] for start, end in pairwise(self._starts)])
        return dict(zip(words, words, strict=True))

    def _key(self, number: int) -> str:
        return self._word(2 * number)

    def _word(self, number: int) -> str:
        return self._text[self._starts[number] : self._starts[number + 1]]
