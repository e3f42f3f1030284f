"""Equal parts of many objects, kept once.

The pods of one workload have the same labels, owners and tolerations, and every pod of a node the same node name:
kept once each, 150,000 pods fit into a few hundred bytes apiece. Invariant: a shared value is equal to what the object
itself said, without what no decision reads if it is large. The pools drop values that have no other reference, by
themselves, so that neither churn nor a few huge values make them grow.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import accumulate, chain, pairwise
from sys import getrefcount, getsizeof
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

import msgspec

from gracectl.model import wire
from gracectl.model.bounds import MemoryQuota
from gracectl.model.meta import OwnerReference
from gracectl.model.names import NODE_KIND
from gracectl.model.node import DISRUPTED_TAINT, tolerates
from gracectl.model.pod import Toleration
from gracectl.model.untrusted import Decoder

K = TypeVar("K")
V = TypeVar("V")

_SMALL: Final = 1024
"""A pool of fewer entries is not worth a look."""

LARGE: Final = 4096
"""Bytes of JSON. Labels, owners and tolerations of ordinary pods have some hundreds; larger ones are stored for size,
not for speed."""

LONGEST_SHARED: Final = 512
"""Characters: names have 253 at most, and longer texts would fill the pool."""

_LARGE_AT_ONCE: Final = 8 * 1024 * 1024
"""Bytes of large parts that a pool reads before it prunes."""


class Sharing:
    """Pools of one cache, for all decoders of objects with the same lifetime."""

    def __init__(self) -> None:
        self.quota = MemoryQuota()
        """Charges of the large objects of this cache."""
        self._strings = _Strings()
        self._labels = _LabelPool(self._read_labels)
        self._owners = _OwnerPool(self._read_owners)
        self._tolerations = _Pool(_read_tolerations)
        # Attributes, as a method would double the time for each of a million pods.
        self.string: Callable[[str | None], str] = self._strings.__getitem__
        """The one copy of this text; null reads as empty."""
        self.labels: Callable[[msgspec.Raw], Mapping[str, str]] = self._labels.get
        """The map in this JSON (empty for null or nothing); the same object for the same bytes."""
        self.owners: Callable[[msgspec.Raw], tuple[OwnerReference, ...]] = self._owners.get
        """The owner references in this JSON; the same object for the same bytes, unless a node is the owner."""
        self.tolerations: Callable[[msgspec.Raw], tuple[Toleration, ...]] = self._tolerations.get
        """The tolerations in this JSON; the same object for the same bytes."""

    def words(self, raw: msgspec.Raw) -> Mapping[str, str]:
        """A separate map with shared strings, for objects with unique labels."""
        if is_large(raw):
            labels = self.labels(raw)
            if isinstance(labels, PackedLabels):
                self.charge_labels(labels)
            return labels
        return {self.string(key): self.string(value) for key, value in wire.read_labels(raw).items()}

    def charge_labels(self, labels: PackedLabels, namespace: str = "") -> None:
        """Charge a large map, once for all objects that share it. Raises OverLimit."""
        self.quota.charge(labels, ("labels", id(labels)), namespace, getsizeof(labels))

    def prune(self) -> None:
        """Drop values that no object refers to. Runs automatically whenever a pool has doubled."""
        self._strings.prune()
        for pool in (self._labels, self._owners, self._tolerations):
            pool.prune()

    def _read_labels(self, raw: msgspec.Raw) -> Mapping[str, str]:
        if is_large(raw):
            return PackedLabels(wire.read_labels(raw))
        # Only the keys: a value that no other map has (a StatefulSet pod's name) would be pooled for nothing.
        return {self.string(key): value for key, value in wire.read_labels(raw).items()}

    def _read_owners(self, raw: msgspec.Raw) -> tuple[OwnerReference, ...]:
        owners = [
            OwnerReference(
                self.string(owner.kind),
                # The name of a node is shared with the node.
                (self.string(owner.name) if owner.kind == NODE_KIND else owner.name) or "",
                owner.uid or "",
                bool(owner.controller),
                (owner.api_version or "").rpartition("/")[0],
            )
            for owner in _OWNERS.decode(raw) or ()
        ]
        if not is_large(raw):
            return tuple(owners)
        # Decisions ask for the one that manages the object, and whether a node is among them.
        manager = [each for each in owners if each.controller][:1]
        kept = (*manager, *[each for each in owners if each.is_node][:1])
        cut = LONGEST_SHARED
        return tuple(
            OwnerReference(each.kind[:cut], each.name[:cut], each.uid[:cut], each.controller, each.group[:cut])
            for each in kept
        )

    def sizes(self) -> tuple[int, int, int, int]:
        """How many different strings, labels, owners and tolerations the pools hold."""
        return (len(self._strings), len(self._labels), len(self._owners), len(self._tolerations))


def is_large(raw: msgspec.Raw) -> bool:
    """Whether a part is stored for size."""
    return len(memoryview(raw)) > LARGE


class _Strings(dict[str | None, str]):
    """The one copy of each text, by the text. A dict, so that a known text costs no call of Python."""

    _limit = _SMALL

    def __missing__(self, text: str | None) -> str:
        if not text:
            return ""
        if len(text) <= LONGEST_SHARED:
            self[text] = text
            if len(self) > self._limit:
                self.prune()
        return text

    def prune(self) -> None:
        self._limit = _prune(self, _ALONE_AS_KEY)


class _Pool(Generic[V]):
    """Values by the JSON they were read from, or its hash: the server writes equal values in equal bytes."""

    def __init__(self, read: Callable[[msgspec.Raw], V]) -> None:
        self._read = read
        self._values: dict[bytes, V] = {}
        self._last: msgspec.Raw | None = None  # found last, as a copy: a view would keep its page alive
        self._of_last: V
        self._limit = _SMALL
        self._large = 0  # bytes read since the last look

    def get(self, raw: msgspec.Raw) -> V:
        if raw == self._last:  # in a list, nearly always: the pods of a workload follow each other
            return self._of_last
        key = bytes(raw)
        known = self._values.get(key)
        if known is None:
            return self._get_new(raw, key)
        self._last, self._of_last = msgspec.Raw(key), known
        return known

    def _get_new(self, raw: msgspec.Raw, key: bytes) -> V:
        if len(key) > LARGE:
            return self._get_large(raw, key)
        value = self._values[key] = self._read(raw)
        if len(self._values) > self._limit:
            self.prune()
        return value

    def _get_large(self, raw: msgspec.Raw, text: bytes) -> V:
        key = blake2b(text, digest_size=16).digest()
        known = self._values.get(key)
        if known is not None:
            return known
        self._large += len(text)
        if self._large > _LARGE_AT_ONCE:
            self.prune()
            self._large = len(text)
        value = self._values[key] = self._read(raw)
        return value

    def prune(self) -> None:
        self._limit = _prune(self._values, _ALONE)

    def __len__(self) -> int:
        return len(self._values)


class _OwnerPool(_Pool[tuple[OwnerReference, ...]]):
    """A node owns one mirror pod or a few, which are not worth an entry."""

    def _get_new(self, raw: msgspec.Raw, key: bytes) -> tuple[OwnerReference, ...]:
        return self._read(raw) if b'"kind":"Node"' in key else super()._get_new(raw, key)


class _LabelPool(_Pool[Mapping[str, str]]):
    """Large maps are not kept beyond their last object: they are charged for as long as they live."""

    def __init__(self, read: Callable[[msgspec.Raw], Mapping[str, str]]) -> None:
        super().__init__(read)
        self._packed: WeakValueDictionary[bytes, Mapping[str, str]] = WeakValueDictionary()

    def _get_large(self, raw: msgspec.Raw, text: bytes) -> Mapping[str, str]:
        key = blake2b(text, digest_size=16).digest()
        value = self._packed.get(key)
        if value is None:
            value = self._packed[key] = self._read(raw)
        return value

    def __len__(self) -> int:
        return super().__len__() + len(self._packed)


def _prune(pool: dict[K, V], alone: int) -> int:
    """Drop values that only the pool refers to. Returns the size at which to run again (amortized constant cost)."""
    for key, references in _references(pool):
        if references <= alone:
            del pool[key]
    return max(_SMALL, 2 * len(pool))


def _references(pool: dict[K, V]) -> list[tuple[K, int]]:
    return [(key, getrefcount(pool[key])) for key in list(pool)]


# Reference count of a value that only its pool refers to: measured, since interpreters differ.
_ALONE: Final = _references({number: [number] for number in range(1)})[0][1]
_ALONE_AS_KEY: Final = _references({text: text for text in (chr(0x10000 + number) * 2 for number in range(1))})[0][1]


def _read_tolerations(raw: msgspec.Raw) -> tuple[Toleration, ...]:
    found = (
        Toleration(read.key or "", read.operator or "", read.value or "", read.effect or "")
        for read in _TOLERATIONS.decode(raw) or ()
    )
    if is_large(raw):
        # Decisions only need to know whether one tolerates our taint.
        return tuple([each for each in found if tolerates((each,), DISRUPTED_TAINT)][:1])
    return tuple(found)


_OWNERS = Decoder(list[wire.Owner] | None)
_TOLERATIONS = Decoder(list[wire.Toleration] | None)


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

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + getsizeof(self._text) + getsizeof(self._starts)

    def unpacked(self) -> dict[str, str]:
        """All members, for repeated lookups."""
        words = iter([self._text[start:end] for start, end in pairwise(self._starts)])
        return dict(zip(words, words, strict=True))

    def _key(self, number: int) -> str:
        return self._word(2 * number)

    def _word(self, number: int) -> str:
        return self._text[self._starts[number] : self._starts[number + 1]]
