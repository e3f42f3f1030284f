"""Foreign text on its way out: nothing hidden is left in it, and JSON keeps its values."""

from __future__ import annotations

import sys
import unicodedata

import msgspec
import orjson
import pytest
from fuzz.effort import bounded_work
from hypothesis import given
from hypothesis import strategies as st

from gracectl.model.foreign import harmless, visible, visible_json, visible_lines, without_secrets

HOSTILE = "a\x1b[2J\x9b\u202eb\u2066\ufeff\U000e0041\nc\t"
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def hidden(text: str, but: str = "") -> set[str]:
    return {each for each in text if unicodedata.category(each) in HIDDEN and each not in but}


def test_every_control_and_format_of_unicode_is_escaped() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert hidden(visible(everything)) == set()
    assert hidden(visible_lines(everything)) == {"\t", "\n"}
    kept = set(visible(everything))
    # And nothing else: names and messages in any script stay as they are.
    assert {each for each in everything if unicodedata.category(each) not in {*HIDDEN, "Cn"}} <= kept


def test_what_it_looks_like() -> None:
    assert visible(HOSTILE) == r"a\x1b[2J\x9b\u202eb\u2066\ufeff\U000e0041\nc\t"
    assert visible_lines("a\n\tb\x07") == "a\n\tb\\x07"
    assert harmless("\x1b" * 9, 3) == r"\x1b\x1b…"


@given(st.text())
def test_twice_is_once(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    visible(text).encode()


@pytest.mark.parametrize("indent", [0, 2])
@given(value=st.recursive(st.text() | st.integers(0, 9), lambda each: st.dictionaries(st.text(), each, max_size=3)))
def test_a_json_document_keeps_its_value(value: object, indent: int) -> None:
    document = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    assert orjson.loads(visible_json(document)) == value
    assert hidden(visible_json(document), but="\n") == set()


def test_what_is_printable_is_never_hidden() -> None:
    # visible and visible_json look no further at a text that is printable.
    assert hidden("".join(filter(str.isprintable, map(chr, range(0x110000))))) == set()


@pytest.mark.parametrize(("text", "shown"), [
    ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer ***"),
    ('{"authorization": "basic dXNlcjpwYXNz"}', '{"authorization": "basic ***"}'),
    ("token=bearer 0123456789abcdef,", "token=bearer ***,"),
    ("at eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig-1.", "at ***."),
    ("x-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.", "x-***"),
    ("eyJ-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig", "***"),
    ("eyJhbGciOiJIUzI1NiJ9.short.sig", "eyJhbGciOiJIUzI1NiJ9.short.sig"),
    ("a bearer of news", "a bearer of news"),
])  # fmt: skip
def test_credentials_in_what_servers_repeat(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_text_that_begins_a_token_again_and_again_takes_no_longer() -> None:
    with bounded_work(1, seconds=2.0):
        assert without_secrets("eyJ-" * 250_000)
