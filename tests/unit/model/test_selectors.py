"""Selectors beyond the oracle's rows: against a naive model, what is invalid, and the difference of null and empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.model.selectors import (
    LabelQuery,
    LabelSelector,
    Requirement,
    SelectorError,
    parse_selector,
    read_selector,
    selects,
)

KEYS = st.sampled_from(["app", "tier", "example.com/zone", "in", "notin"])
VALUES = st.sampled_from(["", "a", "b", "1", "2", "in", "notin"])
LABELS = st.dictionaries(KEYS, VALUES)
REQUIREMENTS = st.one_of(
    st.builds(
        Requirement, KEYS, st.sampled_from(["In", "NotIn"]),
        st.lists(VALUES, min_size=1, max_size=3, unique=True).map(tuple),
    ),
    st.builds(Requirement, KEYS, st.sampled_from(["Exists", "DoesNotExist"])),
)  # fmt: skip
COMPARISONS = st.builds(
    Requirement, KEYS, st.sampled_from(["Gt", "Lt"]), st.sampled_from(["0", "1", "7"]).map(lambda value: (value,))
)
SPACE = st.sampled_from(["", " ", "  ", "\t", " \r\n"])


def naively(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """What the documentation of Kubernetes says, word for word."""
    having = {value for key, value in labels.items() if key == requirement.key}
    wanted = set(requirement.values)
    numbers = {int(value) for value in having if value.isdigit()}
    match requirement.operator:
        case "In":
            return bool(having & wanted)
        case "NotIn":
            return not having & wanted
        case "Exists":
            return bool(having)
        case "DoesNotExist":
            return not having
    (bound,) = map(int, wanted)
    return any(number > bound if requirement.operator == "Gt" else number < bound for number in numbers)


def written(requirement: Requirement, draw: st.DrawFn) -> str:
    """The requirement in the query grammar, in one of the ways that mean it."""
    key, values = requirement.key, requirement.values

    def space() -> str:
        return draw(SPACE)

    match requirement.operator:
        case "Exists":
            return key
        case "DoesNotExist":
            return f"!{space()}{key}"
        case "Gt" | "Lt":
            return f"{key}{space()}{'>' if requirement.operator == 'Gt' else '<'}{space()}{values[0]}"
    if len(values) == 1 and draw(st.booleans()):
        sign = draw(st.sampled_from(["=", "=="])) if requirement.operator == "In" else "!="
        return f"{key}{space()}{sign}{space()}{values[0]}"
    listed = f"{space()},{space()}".join(values)
    return f"{key} {space()}{requirement.operator.lower()}{space()}({space()}{listed}{space()})"


@st.composite
def queries(draw: st.DrawFn) -> tuple[LabelQuery, str]:
    requirements = draw(st.lists(REQUIREMENTS | COMPARISONS, max_size=4))
    text = ",".join(f"{draw(SPACE)}{written(requirement, draw)}{draw(SPACE)}" for requirement in requirements)
    return LabelQuery(tuple(requirements)), text


@given(st.dictionaries(KEYS, VALUES, max_size=2), st.lists(REQUIREMENTS, max_size=3), LABELS)
def test_all_parts_of_a_selector_must_match(
    match_labels: dict[str, str], expressions: list[Requirement], labels: dict[str, str]
) -> None:
    selector = LabelSelector(match_labels, tuple(expressions))
    selector.validate()
    naive = all((key, value) in labels.items() for key, value in match_labels.items()) and all(
        naively(requirement, labels) for requirement in expressions
    )
    assert selector.matches(labels) is naive


class Watched(dict[str, str]):
    """Labels that count how often they are looked at."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.looks += 1
            yield key

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "DoesNotExist"])
@pytest.mark.parametrize(("requirements", "labels"), [(2_000, 10), (10, 2_000)])
def test_a_match_takes_no_longer_than_the_shorter_of_the_two(operator: str, requirements: int, labels: int) -> None:
    values = ("x",) if operator in ("In", "NotIn") else ()
    wanted = operator in ("In", "Exists")
    prefix = "l" if wanted else "r"
    selector = LabelSelector({}, tuple(Requirement(f"{prefix}{n}", operator, values) for n in range(requirements)))
    watched = Watched({f"l{n}": "x" for n in range(labels)})
    assert selector.matches(watched) is (not wanted or requirements < labels)
    assert watched.looks <= 11


@given(queries(), LABELS)
def test_a_query_reads_as_it_was_meant(query_and_text: tuple[LabelQuery, str], labels: dict[str, str]) -> None:
    query, text = query_and_text
    assert parse_selector(text) == query
    assert parse_selector(text).matches(labels) is all(naively(part, labels) for part in query.requirements)


@given(LABELS)
def test_null_selects_nothing_and_empty_selects_everything(labels: dict[str, str]) -> None:
    assert not selects(None, labels)
    assert selects(LabelSelector(), labels)
    assert read_selector(None) is None
    assert read_selector({}) == LabelSelector()
    assert read_selector({"matchLabels": None, "matchExpressions": None}) == LabelSelector()


@pytest.mark.parametrize(("expression", "words"), [
    ({"key": "a", "operator": "In", "values": []}, "needs at least one value"),
    ({"key": "a", "operator": "NotIn"}, "needs at least one value"),
    ({"key": "a", "operator": "Exists", "values": ["b"]}, "takes no values"),
    ({"key": "a", "operator": "DoesNotExist", "values": ["b"]}, "takes no values"),
    ({"key": "a", "operator": "Gt", "values": ["1"]},
     "'Gt' is no selector operator; choose one of In, NotIn, Exists, DoesNotExist"),
    ({"key": "a", "operator": "in", "values": ["1"]}, "'in' is no selector operator"),
    ({"key": "a"}, "'' is no selector operator"),
    ({"operator": "Exists"}, "'' is no label key"),
    ({"key": "-a", "operator": "Exists"}, "'-a' is no label key"),
    ({"key": "A.example/b", "operator": "Exists"}, "must be a DNS name"),
    ({"key": "/b", "operator": "Exists"}, "must be a DNS name"),
    ({"key": "a/b/c", "operator": "Exists"}, "must be a DNS name"),
    ({"key": "a" * 64, "operator": "Exists"}, "is no label key"),
    ({"key": "a", "operator": "In", "values": ["b c"]}, "'b c' is no label value"),
    ({"key": "a", "operator": "In", "values": ["b" * 64]}, "is no label value"),
    ({"key": "a", "operator": "In", "values": "b"}, "this is no label selector"),
])  # fmt: skip
def test_an_invalid_expression_is_refused_with_its_reason(expression: dict[str, Any], words: str) -> None:
    with pytest.raises(SelectorError, match=words):
        read_selector({"matchExpressions": [expression]})


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"a": "b\n"}, {"a": "é"}, {"": ""}, {"a": 1}])
def test_invalid_match_labels_are_refused(labels: dict[str, Any]) -> None:
    with pytest.raises(SelectorError):
        read_selector({"matchLabels": labels})


@pytest.mark.parametrize(("text", "words"), [
    ("a=b c", "has 'c' where ',' should be"), ("a in b", r"has 'b' where '\(' should be"),
    ("a in (b", r"has its end where '\)' should be"),
    ("a,", "has its end where a label key should be"),
    ("=b", "has '=' where a label key should be"),
    ("a b", "has 'b' where an operator"), ("a=(", r"has '\(' where a value should be"), ("a>b", "needs one integer"),
    ("a>9223372036854775808", "needs one integer"),
    ("!a=b", "has '=' where ',' should be"),
])  # fmt: skip
def test_a_refused_query_says_where(text: str, words: str) -> None:
    with pytest.raises(SelectorError, match=words):
        parse_selector(text)


def test_an_invalid_operator_is_an_error_rather_than_a_guess() -> None:
    with pytest.raises(SelectorError):
        LabelSelector({}, (Requirement("a", "Near"),)).matches({"a": "b"})
