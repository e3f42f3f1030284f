"""JSON values as Go words them; what each verb prints is looked up in Go itself (go1.24)."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.server.goformat import decoded_as, go_strings, go_syntax, go_text, go_type, quoted_words

VALUES: list[tuple[Any, str, str, str]] = [
    (None, "<nil>", "interface {}(nil)", "null"),
    (True, "true", "true", "bool"),
    (7, "7", "7", "number"),
    (0.0, "0", "0", "number"),
    (0.5, "0.5", "0.5", "number"),
    (-1.25e-05, "-1.25e-05", "-1.25e-05", "number"),
    (123456.0, "123456", "123456", "number"),
    (1234567.0, "1.234567e+06", "1.234567e+06", "number"),
    ('a"b', 'a"b', '"a\\"b"', "string"),
    (["a", 1], "[a 1]", '[]interface {}{"a", 1}', "array"),
    ({"b": {"c": None}, "a": 1}, "map[a:1 b:map[c:<nil>]]", '{"a":1, "b":{"c":interface {}(nil)}}', "object"),
]


@pytest.mark.parametrize(("value", "text", "syntax", "word"), VALUES)
def test_values_are_printed(value: Any, text: str, syntax: str, word: str) -> None:
    assert go_text(value) == text
    assert go_syntax(value).replace("map[string]interface {}", "") == syntax
    assert decoded_as(value) == word


def test_types_and_lists_are_named() -> None:
    values: list[Any] = [1, 1.0, [], {}]
    assert [go_type(value) for value in values] == [
        "int64",
        "float64",
        "[]interface {}",
        "map[string]interface {}",
    ]
    assert go_strings(["a", "b"]) == '[]string{"a", "b"}'
    assert quoted_words(["a", "b"]) == '["a" "b"]'
