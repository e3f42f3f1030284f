"""Which nodes fit into a window, a few at a time."""

from __future__ import annotations

import pytest

from gracectl.policy.answers import Answer, Never, Unknown, Window
from gracectl.policy.fit import Fit, fit_window

OPENS = 1_000_000_000.0
MINUTE = 60.0


def drained(earliest: float, latest: float, expected: float | None = None) -> Answer:
    """In minutes after the opening."""
    at = None if expected is None else OPENS + expected * MINUTE
    return Window(OPENS + earliest * MINUTE, OPENS + latest * MINUTE, at)


QUICK, SLOW = drained(0, 10, 5), drained(0, 30, 20)


@pytest.mark.parametrize(("forecasts", "minutes", "at_once", "expected"), [
    ({"n1": QUICK, "n2": QUICK}, 20, 1, {"n1": Fit.YES, "n2": Fit.YES}),
    ({"n1": QUICK, "n2": QUICK}, 19, 1, {"n1": Fit.YES, "n2": Fit.LIKELY}),
    ({"n1": QUICK, "n2": QUICK}, 9, 1, {"n1": Fit.LIKELY, "n2": Fit.UNLIKELY}),
    ({"n1": QUICK, "n2": QUICK}, 10, 2, {"n1": Fit.YES, "n2": Fit.YES}),
    # The quickest first: the slow one waits for a place.
    ({"n1": SLOW, "n2": QUICK}, 30, 1, {"n2": Fit.YES, "n1": Fit.LIKELY}),
    ({"n1": SLOW, "n2": QUICK}, 24, 1, {"n2": Fit.YES, "n1": Fit.UNLIKELY}),
    ({"n1": drained(0, 10)}, 9, 1, {"n1": Fit.UNLIKELY}),  # nothing is expected: the latest counts
    ({"n1": Unknown(("a",)), "n2": Never(()), "n3": QUICK}, 10, 1, {"n3": Fit.YES, "n1": Fit.UNKNOWN, "n2": Fit.NEVER}),
    ({"n1": QUICK}, None, 1, {"n1": Fit.YES}),
])  # fmt: skip
def test_what_fits(forecasts: dict[str, Answer], minutes: float | None, at_once: int, expected: dict[str, Fit]) -> None:
    closes = None if minutes is None else OPENS + minutes * MINUTE
    found = fit_window(forecasts.items(), (OPENS, closes), at_once, 0.0)
    assert {each.name: each.fit for each in found.nodes} == expected
    assert [each.name for each in found.nodes] == [*expected]


def test_a_place_is_free_when_the_pods_are_replaced() -> None:
    forecasts = {"n1": QUICK, "n2": QUICK}
    found = fit_window(forecasts.items(), (OPENS, OPENS + 20 * MINUTE), 1, 30.0)
    assert [each.fit for each in found.nodes] == [Fit.YES, Fit.LIKELY]
    assert found.nodes[1].drained == Window(OPENS, OPENS + 20 * MINUTE + 30, OPENS + 10 * MINUTE + 30)


def test_the_text_counts_what_is_expected_and_names_the_rest() -> None:
    forecasts = {"n1": QUICK, "n2": QUICK, "n3": SLOW, "n4": Never(()), "n5": Unknown(("a",))}
    assert str(fit_window(forecasts.items(), (OPENS, OPENS + 15 * MINUTE), 1, 0.0)) == (
        "Window from 2001-09-09T01:46:40Z to 2001-09-09T02:01:40Z, 1 node at the same time: 2 of 5 expected to be "
        "drained in it, 1 even if each drain takes its longest; not expected: n3; unknown: n5; never drained: n4"
    )
    assert str(fit_window({"n1": QUICK}.items(), (OPENS, None), 2, 0.0)) == (
        "Window from 2001-09-09T01:46:40Z on, 2 nodes at the same time: 1 of 1 expected to be drained in it"
    )
