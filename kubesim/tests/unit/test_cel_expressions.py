"""Expressions: what they give, what fails while they run, and what does not compile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubesim.cel.errors import CompileError, EvaluationError
from kubesim.cel.program import compile_expression
from kubesim.cel.types import exposed, maybe
from kubesim.cel.values import Maybe
from kubesim.types.schema import Schema

FIELDS: dict[str, Any] = {
    "n": {"type": "integer"},
    "d": {"type": "number"},
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "integer"}},
    "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {"x-kubernetes-int-or-string": True},
    "at": {"type": "string", "format": "date-time"},
    "for": {"type": "string", "format": "duration"},
    "inner": {"type": "object", "properties": {"x": {"type": "string"}, "y-z": {"type": "string"}}},
    "hidden": {"x-kubernetes-preserve-unknown-fields": True},
}
SEEN = exposed(Schema({"type": "object", "properties": FIELDS}))
assert SEEN is not None
SELF = SEEN.value(
    {
        "n": 3,
        "d": 2,
        "s": "karpenter.sh/x",
        "b": True,
        "list": [1, 2, 3],
        "set": ["a", "b"],
        "labels": {"k": "v"},
        "any": "5%",
        "at": "2020-02-03T04:05:06Z",
        "for": "90s",
        "inner": {"y-z": "q"},
    }
)
OLD = SEEN.value({"set": ["b", "a"]})


def run(text: str) -> Any:
    assert SEEN is not None
    return compile_expression(text, {"self": SEEN.type, "oldSelf": SEEN.type}).run({"self": SELF, "oldSelf": OLD})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # literals and arithmetic
        ("1 + 2 * 3 - -4", 11),
        ("7 / -2", -3),
        ("-7 % 4", -3),
        ("0x10 + 1", 17),
        ("1.5e1 * 0.5", 7.5),
        ("'a' + \"b\" + r'\\d' + '''c'''", "ab\\dc"),
        ("'\\u00e4\\n'.size()", 2),
        ("'1' < '2' && 1 < 2.5 && 2 >= 1", True),
        ("!(1 == 2) ? 'yes' : 'no'", "yes"),
        ("-9223372036854775808", -(2**63)),
        # fields, maps and lists
        ("self.labels.k", "v"),
        ("'k' in self.labels && !('z' in self.labels)", True),
        ("self.list[1] in self.list", True),
        ("has(self.inner) && !has(self.inner.x)", True),
        ("has(self.labels.k) && !has(self.labels.zz)", True),
        ("self.inner.y__dash__z", "q"),
        ("self.__for__ > duration('1m')", True),
        ("self.set == oldSelf.set", True),
        ("self.list == [3, 2, 1]", False),
        ("(self.set + ['b', 'c']).size()", 3),
        ("{'a': 1, 'b': 2}.size()", 2),
        # errors are absorbed by what decides
        ("self.list[9] == 1 || true", True),
        ("false && self.list[9] == 1", False),
        ("self.list.exists(x, 6 / (x - 1) == 6)", True),
        ("self.list.all(x, 6 / (x - 1) == 7)", False),
        # macros
        ("self.list.map(x, x * 2)", [2, 4, 6]),
        ("self.list.map(x, x > 1, x * 2)", [4, 6]),
        ("self.list.filter(x, x != 2)", [1, 3]),
        ("self.list.exists_one(x, x == 2)", True),
        ("self.labels.all(key, key.size() == 1)", True),
        ("self.list.map(x, self.list.filter(y, y < x).size())", [0, 1, 2]),
        # types and conversions
        ("type(self.any) == string && type(1) != type(1.0)", True),
        ("type(self.n) == int && type(self.labels) == map", True),
        ("int('-4') + int(2.9)", -2),
        ("string(2.5) + string(1) + string(true) + string(duration('90s'))", "2.51true90s"),
        ("double('1.5') == 1.5", True),
        ("self.at + self.__for__ > timestamp('2020-02-03T04:06:00Z')", True),
        # text
        ("self.s.matches('^[a-z./]+$') && matches('ab\\n', 'b$')", False),
        ("self.s.find('^([^/]+)')", "karpenter.sh"),
        ("'a1b22'.findAll('[0-9]+')", ["1", "22"]),
        ("'a '.startsWith('a') && 'abc'.contains('b') && 'abc'.endsWith('c')", True),
        # Kubernetes' own
        ("self.list.sum()", 6),
        # optional values
        ("self.?inner.?x.orValue('none')", "none"),
    ],
)
def test_expressions_give(text: str, value: Any) -> None:
    assert run(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("self.list[3] == 1", "index out of bounds: 3"),
        ("self.labels['z'] == ''", "no such key: z"),
        ("self.inner.x == ''", "no such key: x"),
        ("1 / (self.n - 3)", "division by zero"),
        ("9223372036854775807 + self.n", "integer overflow"),
        ("int('x')", "type conversion error from 'string' to 'int'"),
        ("self.any < 3", "no such overload"),
    ],
)
def test_expressions_fail(text: str, words: str) -> None:
    with pytest.raises(EvaluationError) as failed:
        run(text)
    assert str(failed.value).startswith(words)


ANSWERS: dict[str, str] = json.loads((Path(__file__).parent / "answers" / "expressions.json").read_text())
"""Expressions and what a real server (1.33) says of them first, "" if nothing is wrong."""

PROPERTIES: dict[str, Any] = {
    "n": {"type": "integer"},
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "integer"}},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {"x-kubernetes-int-or-string": True},
    "inner": {"type": "object", "properties": {"x": {"type": "string"}}},
    "hidden": {"x-kubernetes-preserve-unknown-fields": True},
    "for": {"type": "string"},
}


@pytest.mark.parametrize("text", ANSWERS)
def test_what_is_wrong_is_worded_as_by_a_real_server(text: str) -> None:
    seen = exposed(Schema({"type": "object", "properties": PROPERTIES}))
    assert seen is not None
    try:
        program = compile_expression(text, {"self": seen.type})
    except CompileError as error:
        said = error.shown_in(text).partition("\n")[0].removeprefix("ERROR: <input>:")
    else:
        said = "" if str(program.type) == "bool" else "cel expression must evaluate to a bool"
    assert said == ANSWERS[text]


def test_an_old_value_may_be_optional() -> None:
    assert SEEN is not None
    program = compile_expression("oldSelf.?n.orValue(0) <= self.n", {"self": SEEN.type, "oldSelf": maybe(SEEN.type)})
    assert program.variables == {"self", "oldSelf"}
    assert program.run({"self": SELF, "oldSelf": Maybe()}) is True
    assert program.run({"self": SELF, "oldSelf": Maybe(({"n": 4},))}) is False


def test_a_deep_expression_is_no_crash() -> None:
    with pytest.raises(CompileError):
        run("(" * 500 + "1" + ")" * 500)
