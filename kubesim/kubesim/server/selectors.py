"""Label and field selectors: the text form of a query (recording list-selectors) and the object form, LabelSelector.

Refusals carry the server's own words. Both forms are held against apimachinery's own answers (tests/oracles).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from kubesim.server.api import JsonObject
from kubesim.server.names import NAME_RULE, VALUE_RULE, is_name, is_value, key_faults
from kubesim.server.resource import Resource
from kubesim.server.status import Cause, bad_request, forbidden_value, invalid_value, required

Labels = Mapping[str, str]
Match = Callable[[JsonObject], bool]

TOKEN = re.compile(r"\s*(==|!=|[=,()!<>]|[^\s=,()!<>]+|\Z)")
COMPARISONS = {">", "<", "gt", "lt"}
OPERATORS = {"in", "notin", "=", "==", "!="} | COMPARISONS
OBJECT_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


class _Requirement:
    """One term: a key, an operator, values."""

    __slots__ = ("key", "operator", "values")

    def __init__(self, key: str, operator: str, values: frozenset[str]) -> None:
        self.key = key
        self.operator = operator
        self.values = values

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "!":
                return value is None
            case "in" | "=" | "==":
                return value in self.values
            case "notin" | "!=":
                return value not in self.values
        if value is None or self.operator not in COMPARISONS:
            return False
        try:
            here, bound = int(value), int(next(iter(self.values)))
        except ValueError:
            return False
        return here > bound if self.operator in (">", "gt") else here < bound


class LabelQuery:
    """A parsed `labelSelector=`: all of its requirements."""

    def __init__(self, requirements: list[_Requirement]) -> None:
        self._requirements = requirements

    def matches(self, labels: Labels) -> bool:
        """Whether the labels meet every requirement."""
        return all(requirement.matches(labels) for requirement in self._requirements)


class _Parser:
    """A recursive descent over the tokens of one selector."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [token for token in TOKEN.findall(text) if token] + [""]
        self._next = 0

    def _take(self) -> str:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _peek(self) -> str:
        return self._tokens[self._next]

    def parse(self) -> list[_Requirement]:
        found: list[_Requirement] = []
        while self._peek():
            found.append(self._requirement())
            separator = self._take()
            if separator == "":
                break
            if separator != ",":
                raise bad_request(f"unable to parse requirement: found '{separator}', expected: ',' or 'end of string'")
            if not self._peek():
                raise bad_request("unable to parse requirement: found '', expected: identifier after ','")
        return found

    def _requirement(self) -> _Requirement:
        if self._peek() == "!":
            self._take()
            return _Requirement(self._key(), "!", frozenset())
        key = self._key()
        if self._peek() in ("", ","):
            return _Requirement(key, "exists", frozenset())
        operator = self._take()
        if operator not in OPERATORS:
            raise bad_request(
                f"unable to parse requirement: found '{operator}', expected: in, notin, =, ==, !=, gt, lt"
            )
        if operator in ("in", "notin"):
            return _Requirement(key, operator, self._values())
        value = "" if self._peek() in ("", ",") else self._take()
        _check_value(value)
        return _Requirement(key, operator, frozenset((value,)))

    def _key(self) -> str:
        key = self._take()
        if not key or key in "=,()!<>" or key in ("==", "!="):
            raise bad_request(f"unable to parse requirement: found '{key}', expected: identifier")
        if not is_name(key):
            raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": {NAME_RULE}')
        return key

    def _values(self) -> frozenset[str]:
        opening = self._take()
        if opening != "(":
            raise bad_request(f"unable to parse requirement: found '{opening}' expected: '('")
        values: set[str] = set()
        while True:
            value = "" if self._peek() in (",", ")") else self._take()
            _check_value(value)
            values.add(value)
            closing = self._take()
            if closing == ")":
                return frozenset(values)
            if closing != ",":
                raise bad_request(f"unable to parse requirement: found '{closing}', expected: ',' or ')'")


def _check_value(value: str) -> None:
    if not is_value(value):
        raise bad_request(f'unable to parse requirement: values[0][key]: Invalid value: "{value}": {VALUE_RULE}')


def label_query(text: str) -> LabelQuery:
    """Read a `labelSelector=`. Raises Refusal (400)."""
    return LabelQuery(_Parser(text).parse())


def field_match(text: str, resource: Resource) -> Match:
    """Read a `fieldSelector=` over the fields that the kind offers. Raises Refusal (400)."""
    terms: list[tuple[Callable[[JsonObject], str], str, bool]] = []
    for term in filter(None, text.split(",")):
        path, operator, value = _field_term(term, text)
        read = resource.selectable.get(path)
        if read is None:
            raise bad_request(resource.unselectable.format(field=path))
        terms.append((read, value, operator != "!="))
    if len(terms) == 1:
        read, value, wanted = terms[0]
        return lambda object_: (read(object_) == value) is wanted
    return lambda object_: all((read(object_) == value) is wanted for read, value, wanted in terms)


def _field_term(term: str, text: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        path, found, value = term.partition(operator)
        if found:
            return path, operator, value
    raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")


def object_match(query: Mapping[str, str], resource: Resource) -> Match | None:
    """What a request's selectors let through, or None when it has none. Raises Refusal (400)."""
    labels_text, fields_text = query.get("labelSelector", "").strip(), query.get("fieldSelector", "").strip()
    by_field = field_match(fields_text, resource) if fields_text else None
    if not labels_text:
        return by_field
    labels = label_query(labels_text)

    def match(object_: JsonObject) -> bool:
        return labels.matches(object_["metadata"].get("labels") or {}) and (by_field is None or by_field(object_))

    return match


class SelectorError(ValueError):
    """A LabelSelector that no API server takes."""


class LabelSelector:
    """A LabelSelector object: all of `match_labels` and of its expressions must match. Read once, matched often."""

    def __init__(self, selector: JsonObject) -> None:
        self.match_labels: Labels = selector.get("matchLabels") or {}
        terms = selector.get("matchExpressions") or ()
        self._expressions = [
            _Requirement(term.get("key", ""), OBJECT_OPERATORS.get(term.get("operator", ""), "nonsense"), _values(term))
            for term in terms
        ]

    @property
    def has_expressions(self) -> bool:
        """Whether it says more than `match_labels`."""
        return bool(self._expressions)

    def matches(self, labels: Labels) -> bool:
        """Whether it selects an object with these labels; an operator that does not exist selects nothing."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self._expressions
        )


def _values(term: JsonObject) -> frozenset[str]:
    return frozenset(term.get("values") or ())


def read_selector(selector: JsonObject | None) -> LabelSelector | None:
    """A valid LabelSelector object; None stays None. Raises SelectorError."""
    if selector is None:
        return None
    fault = next(label_selector_faults(selector, "selector"), None)
    if fault is not None:
        raise SelectorError(f"{fault.field}: {fault.message}")
    return LabelSelector(selector)


def selects(selector: LabelSelector | None, labels: Labels) -> bool:
    """Whether the selector takes an object with these labels: None selects nothing, an empty selector everything."""
    return selector is not None and selector.matches(labels)


def selector_matches(selector: JsonObject | None, labels: Labels) -> bool:
    """The same for a selector as it stands in an object, valid or not."""
    return selector is not None and LabelSelector(selector).matches(labels)


def label_selector_faults(selector: JsonObject, field: str) -> Iterator[Cause]:
    """What is wrong with the LabelSelector at `field`, in the real server's words and order (ValidateLabelSelector)."""
    labels: Mapping[str, str] = selector.get("matchLabels") or {}
    for key, value in labels.items():
        yield from key_faults(key, f"{field}.matchLabels")
        yield from _value_faults(value, f"{field}.matchLabels")
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        yield from _term_faults(term, f"{field}.matchExpressions[{index}]")


def _term_faults(term: JsonObject, field: str) -> Iterator[Cause]:
    operator, values = term.get("operator", ""), term.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden_value(f"{field}.values", why)
    else:
        yield invalid_value(f"{field}.operator", operator, "not a valid selector operator")
    yield from key_faults(term.get("key", ""), f"{field}.key")
    for index, value in enumerate(values):
        yield from _value_faults(value, f"{field}.values[{index}]")


def _value_faults(value: str, field: str) -> Iterator[Cause]:
    if not is_value(value):
        yield invalid_value(field, value, VALUE_RULE)
