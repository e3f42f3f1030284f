"""Instants as people read them."""

from __future__ import annotations

import pytest

from gracectl.cli.format import elapsed, elapsed_answer
from gracectl.policy.answers import Answer, Never, Unknown, Window


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0:00"),
        (5.99, "0:05"),
        (272, "4:32"),
        (3600, "1:00:00"),
        (3872, "1:04:32"),
        (86_399, "23:59:59"),
        (2 * 86_400 + 3 * 3600, "2d 03:00:00"),
        (-61, "-1:01"),
    ],
)
def test_seconds_are_counted(seconds: float, words: str) -> None:
    assert elapsed(seconds) == words


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (Never(()), "never"),
        (Unknown(("when it ends",), 160.0), "unknown"),
        (Window(100.0, 100.0), "0:00"),
        (Window(100.0, 100.9), "0:00"),
        (Window(100.0, 372.0), "0:00-4:32"),
        (Window(40.0, 160.0), "0:00-1:00"),
    ],
)
def test_spans_are_counted_from_a_beginning(span: Answer, words: str) -> None:
    assert elapsed_answer(span, 100.0) == words
