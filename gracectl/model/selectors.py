"""Label selectors: the object form (metav1.LabelSelector) and the text form (`labelSelector=` of a query).

Both become requirements on one label each; validity and matching follow k8s.io/apimachinery
(`LabelSelectorAsSelector`, `labels.Parse`), checked against its own answers in kubesim/tests/oracles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec

_NAME: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_TOKEN: Final = re.compile(r"[ \t\r\n]*(==|!=|[=!(),<>]|[^=!(),<> \t\r\n]+)?")
_SYMBOLS: Final = frozenset(("==", "!=", "=", "!", "(", ")", ",", "<", ">"))
_TEXT_OPERATORS: Final = {
    "=": "In",
    "==": "In",
    "!=": "NotIn",
    "in": "In",
    "notin": "NotIn",
    ">": "Gt",
    "<": "Lt",
}
_OBJECT_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_ONE_COPY: Final = {operator: operator for operator in _OBJECT_OPERATORS}


class SelectorError(ValueError):
    """A selector that Kubernetes would refuse; the message says which part and why."""


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """Requirement on one label. Operators: In, NotIn, Exists, DoesNotExist; in the text form also Gt and Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it; NotIn also where the label is absent. SelectorError: no such operator."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return value is not None and self._compares(value)
        raise SelectorError(f"{self.operator!r} is no selector operator")

    def validate(self) -> None:
        """SelectorError unless key, operator and values fit together as `labels.NewRequirement` wants them."""
        validate_label_key(self.key)
        match self.operator:
            case "In" | "NotIn":
                if not self.values:
                    raise SelectorError(f"operator {self.operator} on label {self.key!r} needs at least one value")
            case "Exists" | "DoesNotExist":
                if self.values:
                    raise SelectorError(f"operator {self.operator} on label {self.key!r} takes no values")
            case "Gt" | "Lt":
                if len(self.values) != 1 or _integer(self.values[0]) is None:
                    raise SelectorError(f"operator {self.operator} on label {self.key!r} needs one integer")
            case _:
                raise SelectorError(f"{self.operator!r} is no selector operator")
        for value in self.values:
            validate_label_value(value)

    def _compares(self, text: str) -> bool:
        value, bound = _integer(text), _integer(self.values[0])
        if value is None or bound is None:
            return False
        return value > bound if self.operator == "Gt" else value < bound


class LabelSelector(msgspec.Struct, frozen=True, dict=True, weakref=True):
    """metav1.LabelSelector: all of its parts must match, so an empty one matches everything."""

    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy every part. Takes no longer than there are labels, or requirements, whichever
        are fewer: others write thousands of either. SelectorError: no such operator."""
        return self._sorted.match(labels)

    @property
    def size(self) -> int:
        """How many labels, requirements and values there are, and one."""
        expressions = self.match_expressions
        return 1 + len(self.match_labels) + len(expressions) + sum([len(each.values) for each in expressions])

    @property
    def required(self) -> Mapping[str, frozenset[str] | None]:
        """The labels that must be there, each with the values that it may have (None: any)."""
        return self._sorted.required

    @property
    def excluded(self) -> Mapping[str, frozenset[str] | None]:
        """The labels that must not be there, each with the values that it must not have (None: any)."""
        return self._sorted.excluded

    @cached_property
    def _sorted(self) -> _Sorted:
        return _Sorted(self)

    def validate(self) -> None:
        """SelectorError if Kubernetes would refuse this selector."""
        for key, value in self.match_labels.items():
            validate_label_key(key)
            validate_label_value(value)
        for requirement in self.match_expressions:
            if requirement.operator not in _OBJECT_OPERATORS:
                raise SelectorError(
                    f"{requirement.operator!r} is no selector operator; choose one of {', '.join(_OBJECT_OPERATORS)}"
                )
            requirement.validate()


class _Sorted:
    """A selector's requirements by what they say of their key, each key once."""

    __slots__ = ("_absent", "_allowed", "_excluded", "_needed")

    def __init__(self, selector: LabelSelector) -> None:
        allowed: dict[str, frozenset[str]] = {key: frozenset((value,)) for key, value in selector.match_labels.items()}
        excluded: dict[str, frozenset[str]] = {}
        absent, present = set(), set()
        for requirement in selector.match_expressions:
            key, values = requirement.key, frozenset(requirement.values)
            match requirement.operator:
                case "In":
                    allowed[key] = values & allowed.get(key, values)
                case "NotIn":
                    excluded[key] = values | excluded.get(key, frozenset())
                case "Exists":
                    present.add(key)
                case "DoesNotExist":
                    absent.add(key)
                case _:
                    raise SelectorError(f"{requirement.operator!r} is no operator of a selector")
        self._allowed = allowed
        self._needed = frozenset(present - allowed.keys())
        self._absent = frozenset(absent)
        self._excluded = excluded

    @property
    def required(self) -> dict[str, frozenset[str] | None]:
        """See LabelSelector."""
        return {**dict.fromkeys(self._needed), **self._allowed}

    @property
    def excluded(self) -> dict[str, frozenset[str] | None]:
        """See LabelSelector."""
        return {**self._excluded, **dict.fromkeys(self._absent)}

    def match(self, labels: Mapping[str, str]) -> bool:
        """See LabelSelector."""
        # Stops at the first required label that is missing, so it looks at no more labels than the object has.
        for key, values in self._allowed.items():
            if labels.get(key) not in values:
                return False
        if self._needed and not all(map(labels.__contains__, self._needed)):
            return False
        if self._absent and _meet(labels, self._absent):
            return False
        return not self._excluded or not self._excludes(labels)

    def _excludes(self, labels: Mapping[str, str]) -> bool:
        excluded = self._excluded
        if len(excluded) <= len(labels):
            return any(labels.get(key) in values for key, values in excluded.items())
        return any(value in excluded.get(key, ()) for key, value in labels.items())


def _meet(labels: Mapping[str, str], keys: frozenset[str]) -> bool:
    """Whether any of the keys is that of a label."""
    if len(keys) <= len(labels):
        return any(map(labels.__contains__, keys))
    return any(map(keys.__contains__, labels))


class LabelQuery(msgspec.Struct, frozen=True, gc=False):
    """A parsed `labelSelector=`; without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)


class WireRequirement(msgspec.Struct):
    """A matchExpressions entry as JSON has it."""

    key: str | None = None
    operator: str | None = None
    values: tuple[str, ...] | None = None


class WireLabelSelector(msgspec.Struct, rename="camel"):
    """A selector in JSON: Go clients write null for empty fields."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[WireRequirement] | None = None

    def selector(self) -> LabelSelector:
        """The selector that it means; not validated."""
        return LabelSelector(
            self.match_labels or {},
            tuple(
                Requirement(wire.key or "", _ONE_COPY.get(wire.operator or "", wire.operator or ""), wire.values or ())
                for wire in self.match_expressions or ()
            ),
        )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether the selector takes an object with these labels: None selects nothing, an empty selector everything."""
    return selector is not None and selector.matches(labels)


def read_selector(value: object) -> LabelSelector | None:
    """A selector from parsed JSON or YAML (None stays None); SelectorError if it is malformed or invalid."""
    try:
        wire = msgspec.convert(value, WireLabelSelector | None)
    except msgspec.ValidationError as error:
        raise SelectorError(f"this is no label selector: {error}") from error
    if wire is None:
        return None
    selector = wire.selector()
    selector.validate()
    return selector


def parse_selector(text: str) -> LabelQuery:
    """Read the query grammar: `a=b,c!=d,e in (f,g),!h,i>1`. SelectorError where the server answers 400."""
    return _QueryParser(text).parse()


def is_subdomain(name: str) -> bool:
    """Whether it is a DNS-1123 subdomain, as names of nodes and most other objects are."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def validate_label_key(key: str) -> None:
    """SelectorError unless `key` is a qualified name: [dns-subdomain/]name."""
    prefix, slash, name = key.rpartition("/")
    if slash and not is_subdomain(prefix):
        raise SelectorError(f"{key!r} is no label key: the part before the slash must be a DNS name")
    if not (len(name) <= 63 and _NAME.fullmatch(name)):
        raise SelectorError(
            f"{key!r} is no label key: it must be 1-63 letters, digits, '-', '_', '.', beginning and ending with "
            "a letter or digit"
        )


def validate_label_value(value: str) -> None:
    """SelectorError unless `value` may be the value of a label; the empty text may."""
    if value and not (len(value) <= 63 and _NAME.fullmatch(value)):
        raise SelectorError(
            f"{value!r} is no label value: it must be at most 63 letters, digits, '-', '_', '.', beginning and ending "
            "with a letter or digit"
        )


def _integer(text: str) -> int | None:
    """The int64 that `text` writes, else None."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


class _QueryParser:
    """Recursive descent, as the server does it: `in` and `notin` are operators after a key and words elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text
        # Trailing white space yields an empty match, which is not a token.
        self._tokens = [token for token in _TOKEN.findall(text) if token]
        self._position = 0

    def parse(self) -> LabelQuery:
        requirements: list[Requirement] = []
        while self._peek():
            requirement = self._requirement()
            requirement.validate()
            requirements.append(requirement)
            if not self._peek():
                break
            self._expect(",")
            if not self._peek() or self._peek() in _SYMBOLS - {"!"}:
                raise self._unexpected("a label key")
        return LabelQuery(tuple(requirements))

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._next()
            return Requirement(self._word("a label key"), "DoesNotExist")
        key = self._word("a label key")
        if self._peek() in ("", ","):
            return Requirement(key, "Exists")
        written = self._peek()
        if written not in _TEXT_OPERATORS:
            raise self._unexpected("an operator (=, ==, !=, in, notin, <, >)")
        self._next()
        values = self._set() if written in ("in", "notin") else (self._value(),)
        return Requirement(key, _TEXT_OPERATORS[written], values)

    def _value(self) -> str:
        return "" if self._peek() in ("", ",") else self._word("a value")

    def _set(self) -> tuple[str, ...]:
        """`(a,b)`; a missing member, as in `()` or `(a,)`, is the empty text."""
        self._expect("(")
        values: list[str] = []
        while True:
            values.append("" if self._peek() in (",", ")") else self._word("a value"))
            if self._peek() != ",":
                break
            self._next()
        self._expect(")")
        return tuple(dict.fromkeys(values))

    def _word(self, wanted: str) -> str:
        if not self._peek() or self._peek() in _SYMBOLS:
            raise self._unexpected(wanted)
        return self._next()

    def _expect(self, symbol: str) -> None:
        if self._peek() != symbol:
            raise self._unexpected(f"{symbol!r}")
        self._next()

    def _peek(self) -> str:
        """The next token; "" at the end."""
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._position += 1
        return token

    def _unexpected(self, wanted: str) -> SelectorError:
        found = repr(self._peek()) if self._peek() else "its end"
        return SelectorError(f"the selector {self._text!r} has {found} where {wanted} should be")
