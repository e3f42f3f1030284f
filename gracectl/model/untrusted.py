"""Decoder of JSON that this program did not write: the one entry through which foreign bytes become values.

Invariant: for any bytes, a decoder returns a value or raises msgspec.DecodeError. msgspec alone also raises
RecursionError for nesting that it only skips (`managedFields[].fieldsV1`, stored by API servers 10,000 deep) and
UnicodeDecodeError for text that is not UTF-8; and one instant that it cannot represent spoils a whole object, though Go
writes such ones: a kubelet may have stored the years 0 or 10000. So bytes that cannot be decoded are repaired once:
values that are nested too deeply are cut out, and instants out of range are moved to its end. Both take
linear time and no recursion, and neither is done to bytes that can be decoded as they are.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")
Bytes = bytes | str | msgspec.Raw
Steps = Generator[None, None, T]

MAXIMUM_DEPTH: Final = 64
"""Maximum nesting that is kept; the fields that are read are nested ten levels deep."""


_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Exceptions of msgspec for bytes that it cannot decode without repair."""


class Decoder(Generic[T]):
    """Decodes JSON to values of one type."""

    @overload
    def __init__(self, type_: type[T]) -> None: ...
    @overload
    def __init__(self: Decoder[Any], type_: Any) -> None: ...

    def __init__(self, type_: Any) -> None:
        self._decode = msgspec.json.Decoder(type_).decode

    def decode(self, raw: Bytes) -> T:
        """The value in these bytes. Raises msgspec.DecodeError and nothing else."""
        try:
            value: T = self._decode(raw)
        except _UNREADABLE as error:
            value = finish(self._decode_repaired(raw, error))
        return value

    def decode_as_it_is(self, raw: Bytes) -> T | None:
        """The value, or None where only repaired bytes have one, or none have."""
        try:
            value: T = self._decode(raw)
        except _UNREADABLE:
            return None
        return value

    def decode_in_slices(self, raw: Bytes) -> Steps[T]:
        """Decode a large body in steps: a generator whose return value is the value, so that its repair does not block
        the event loop."""
        try:
            value: T = self._decode(raw)
        except _UNREADABLE as error:
            value = yield from self._decode_repaired(raw, error)
        return value

    def _decode_repaired(self, raw: Bytes, error: Exception) -> Steps[T]:
        body = raw.encode("utf-8", "replace") if isinstance(raw, str) else bytes(raw)
        repaired = yield from _repair(body)
        try:
            if repaired == body:
                raise error
            value: T = self._decode(repaired)
        except msgspec.DecodeError:
            raise
        except RecursionError as problem:
            raise msgspec.DecodeError("JSON is nested too deeply") from problem
        except UnicodeDecodeError as problem:
            raise msgspec.DecodeError("JSON is malformed: its text is not UTF-8") from problem
        return value


def finish(slices: Steps[T]) -> T:
    """Run all steps of a generator; returns its value."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            value: T = end.value
            return value


def repair(body: bytes) -> bytes:
    """The JSON without values that are nested too deeply, and with instants in range."""
    return finish(_repair(body))


def _repair(body: bytes) -> Steps[bytes]:
    if body.count(b"[") + body.count(b"{") > MAXIMUM_DEPTH:
        body = yield from _shallow(body)
    return _INSTANT.sub(_in_range, body)


def _shallow(body: bytes) -> Steps[bytes]:
    """The body with null for each part that is nested too deeply."""
    kept: list[bytes] = []
    kept_from = depth = at = steps = 0
    while True:
        steps += 1
        if steps % _STEPS_IN_A_SLICE == 0:
            yield
        if depth > MAXIMUM_DEPTH and (found := _OPENING.match(body, at)):
            depth, at = depth + _RUN, found.end()
            continue
        if depth > MAXIMUM_DEPTH + _RUN and (found := _CLOSING.match(body, at)):
            depth, at = depth - _RUN, found.end()
            continue
        if (found := _BRACKET.match(body, at)) is None:
            break
        at = found.end()
        if body[at - 1] in b"[{":
            depth += 1
            if depth == MAXIMUM_DEPTH + 1:
                kept += (body[kept_from : at - 1], b"null")
        else:
            if depth == MAXIMUM_DEPTH + 1:
                kept_from = at
            depth -= 1
    # A body that ends inside a cut value is malformed, and must stay so.
    return b"".join(kept) if depth > MAXIMUM_DEPTH else b"".join((*kept, body[kept_from:]))


def _in_range(found: re.Match[bytes]) -> bytes:
    key, sign, year = found.groups()
    if sign or not int(year):
        return key + b'"0001-01-01T00:00:00Z"'
    return key + b'"9999-12-31T23:59:59Z"' if int(year) > 9999 else found[0]


# Everything up to a bracket outside of strings. Possessive: on malformed text it fails immediately.
_TEXT: Final = rb'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+'
_BRACKET: Final = re.compile(_TEXT + rb"[\[\]{}]", re.DOTALL)
# Several at a time: a cut value may have a hundred thousand.
_RUN: Final = 32
_OPENING: Final = re.compile(rb"(?:" + _TEXT + rb"[\[{]){%d}" % _RUN, re.DOTALL)
_CLOSING: Final = re.compile(rb"(?:" + _TEXT + rb"[\]}]){%d}" % _RUN, re.DOTALL)
_STEPS_IN_A_SLICE: Final = 10_000
# Fields of metav1.Time and metav1.MicroTime. Go writes as many digits of a year as it has.
# https://github.com/kubernetes/apimachinery/blob/v0.34.1/pkg/apis/meta/v1/time.go
_INSTANT: Final = re.compile(
    rb'("[a-z][A-Za-z]{0,60}Time(?:stamp)?"\s{0,9}:\s{0,9})'
    rb'"(-?)([0-9]{4,12})-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"'
)
