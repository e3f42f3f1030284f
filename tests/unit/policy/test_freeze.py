"""The freeze: what its ConfigMap says, and what keeps voluntary terminations from beginning."""

from __future__ import annotations

import pytest

from gracectl.model.times import parse_time
from gracectl.model.windows import Window
from gracectl.policy.disruption import Hold, HoldReason
from gracectl.policy.freeze import Freeze, hold_to_begin, read_freeze

NOON = parse_time("2026-11-28T12:00:00Z")
HOUR = 3600.0
UNREADABLE = "no end: its until cannot be read: 'tomorrow' is no RFC 3339 time such as 2026-01-01T00:00:00Z"
REMEDY = "run gracectl unfreeze to end it"
WAITS = "outside of its windows until 2026-11-28T22:00:00Z; wait, or change spec.windows"
NIGHTS = (Window("0 22 * * *", "4h"),)


@pytest.mark.parametrize(("data", "expected", "shown"), [
    ({}, Freeze(), "frozen"),
    ({"until": "2026-11-28T12:00:00Z", "reason": "release", "by": "jane"}, Freeze(NOON, "release", "jane"),
     "frozen until 2026-11-28T12:00:00Z by jane (release)"),
    ({"reason": "a\x1b[2Jb\nc"}, Freeze(None, r"a\x1b[2Jb\nc"), r"frozen (a\x1b[2Jb\nc)"),
    ({"until": "tomorrow"}, Freeze(None, problem=UNREADABLE), f"frozen; {UNREADABLE}"),
])  # fmt: skip
def test_what_a_config_map_says(data: dict[str, str], expected: Freeze, shown: str) -> None:
    assert read_freeze(data) == expected
    assert str(expected) == shown


@pytest.mark.parametrize(("freeze", "windows", "expected"), [
    (None, (), None),
    (Freeze(NOON), (), None),  # it has ended
    (Freeze(NOON + 1), (), Hold(HoldReason.FROZEN, f"frozen until 2026-11-28T12:00:01Z; {REMEDY}", NOON + 1)),
    (Freeze(), NIGHTS, Hold(HoldReason.FROZEN, f"frozen; {REMEDY}")),
    (None, NIGHTS, Hold(HoldReason.OUTSIDE_WINDOW, WAITS, NOON + 10 * HOUR)),
    (Freeze(NOON), (Window("0 12 * * *", "1h"),), None),
    (None, (Window("0 12 * * *", "1x"),), Hold(
        HoldReason.OUTSIDE_WINDOW,
        "outside of its windows; spec.windows[0].duration: '1x' is no duration: there is no unit 'x' "
        "(ns, us, ms, s, m, h); give hours and minutes such as 4h or 1h30m",
    )),
])  # fmt: skip
def test_what_keeps_a_termination_from_beginning(
    freeze: Freeze | None, windows: tuple[Window, ...], expected: Hold | None
) -> None:
    assert hold_to_begin(freeze, windows, "spec.windows", NOON) == expected
