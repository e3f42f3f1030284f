"""Instants as people read them."""

from __future__ import annotations

import pytest

from gracectl.cli.format import age_text, drained_in, elapsed, elapsed_answer, total_text
from gracectl.policy.answers import Answer, Never, NeverCause, NeverKind, Unknown, Window, total_of


@pytest.mark.parametrize(("seconds", "words"), [
    (0, "0:00"), (5.99, "0:05"), (272, "4:32"), (3600, "1:00:00"), (3872, "1:04:32"), (86_399, "23:59:59"),
    (2 * 86_400 + 3 * 3600, "2d 03:00:00"), (-61, "-1:01"),
])  # fmt: skip
def test_seconds_are_counted(seconds: float, words: str) -> None:
    assert elapsed(seconds) == words


@pytest.mark.parametrize(("span", "words"), [
    (Never(()), "never"),
    (Unknown(("when it ends",), 160.0), "unknown"),
    (Window(100.0, 100.0), "0:00"), (Window(100.0, 100.9), "0:00"), (Window(100.0, 372.0), "0:00-4:32"),
    (Window(40.0, 160.0), "0:00-1:00"),
    (Window(100.0, 372.0, 170.0), "1:10 (0:00-4:32)"),
    (Window(100.0, 372.0, 100.5), "0:00-4:32"), (Window(40.0, 160.0, 90.0), "0:00-1:00"),
])  # fmt: skip
def test_spans_are_counted_from_a_beginning(span: Answer, words: str) -> None:
    assert elapsed_answer(span, 100.0) == words


NEVER = Never((NeverCause(NeverKind.PROTECTION, "protected", "shop/batch"),))
UNKNOWN = Unknown(("when it ends",), 160.0)


@pytest.mark.parametrize(("answer", "words"), [
    (NEVER, "never drained"),
    (UNKNOWN, "unknown when it ends; not before 1:00"),
    (Unknown(("when a ends", "when b ends", "when c ends", "when d ends")),
     "unknown when a ends, when b ends, when c ends, and 1 more"),
    (Window(100.0, 372.0, 170.0), "drained in 1:10 (0:00-4:32)"),
])  # fmt: skip
def test_an_answer_is_a_sentence_that_says_what_is_unknown(answer: Answer, words: str) -> None:
    assert drained_in(answer, 100.0) == words


@pytest.mark.parametrize(("answers", "words"), [
    ({}, ""), ({"a": Window(110.0, 140.0)}, "0:10-0:40"),
    ({"a": Window(110.0, 140.0), "b": Window(120.0, 130.0)}, "0:20-0:40"),
    ({"a": Window(110.0, 140.0), "b": UNKNOWN}, "unknown for 1 node (b)"),
    ({"a": UNKNOWN}, "unknown"),
    ({"a": Window(110.0, 140.0), "b": NEVER}, "never for 1 node (b), 0:10-0:40 for the others"),
    ({"a": UNKNOWN, "b": NEVER, "c": Window(110.0, 140.0)}, "never for 1 node (b), unknown for 1 node (a)"),
    ({"a": NEVER, "b": NEVER}, "never"),
])  # fmt: skip
def test_a_total_is_no_total_of_the_rest(answers: dict[str, Answer], words: str) -> None:
    assert total_text(total_of(answers.items()), 100.0, with_names=True) == words


def test_the_age_of_a_forecast_is_said_after_five_seconds() -> None:
    assert [age_text(made, 100.0) for made in (None, 95.0, 88.0)] == ["", "", " (forecast 0:12 old)"]
