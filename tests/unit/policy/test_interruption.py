"""What a notice means: its annotation, the order of notices, and from when nothing delays the DELETE."""

from __future__ import annotations

import itertools
import math
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import READY, a_node

from gracectl.model import names
from gracectl.model.foreign import visible
from gracectl.model.selectors import LabelSelector
from gracectl.policy.deadlines import deadline_of
from gracectl.policy.disruption import due_at
from gracectl.policy.health import UnhealthyNodes
from gracectl.policy.interruption import (
    LONGEST_TEXT,
    PACED,
    Interruption,
    Kind,
    decode,
    encode,
    interruption,
    interruption_of,
    is_urgent,
    merged,
    urgent_at,
)
from gracectl.policy.settings import NodeGroup, PolicySettings
from gracectl.policy.voluntary import Cause, reason_of, triggers_of

T = 1_767_225_600.0  # 2026-01-01T00:00:00Z
NO_NODES = UnhealthyNodes(unhealthy=0, managed=0, maximum=0)

notices = st.builds(
    interruption,
    kind=st.sampled_from(Kind),
    at=st.none() | st.integers(min_value=0, max_value=4_000_000_000).map(float),
    source=st.from_regex(r"[a-z0-9][a-z0-9-]{0,39}", fullmatch=True),
    text=st.text(max_size=300),
)


def of(value: str | None) -> Interruption | None:
    return interruption_of(a_node(annotations={} if value is None else {names.INTERRUPTION: value}))


@given(notices)
def test_what_is_written_is_read_again(notice: Interruption) -> None:
    written = encode(notice)
    assert decode(written) == notice
    assert len(written) < LONGEST_TEXT + 100
    assert visible(written) == written


@given(st.lists(notices, min_size=1, max_size=4))
def test_the_order_of_notices_makes_no_difference_and_repeats_change_nothing(interruptions: list[Interruption]) -> None:
    outcomes = {reduce(merged, order) for order in itertools.permutations(interruptions)}
    assert len(outcomes) == 1
    [outcome] = outcomes
    assert all(merged(outcome, each) == outcome for each in interruptions)
    assert outcome.at == min((each.at for each in interruptions if each.at is not None), default=None)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "spot",
        "spot 2026-01-01T00:02:00Z",
        "SPOT unknown aws",
        "spot soon aws",
        "spot unknown A",
        "x" * 9999,
    ],
)
def test_an_annotation_that_cannot_be_read_ends_no_machine(value: str) -> None:
    assert of(value) is None
    with pytest.raises(ValueError, match="is n"):
        decode(value)


def test_a_hostile_text_is_one_short_visible_line() -> None:
    notice = of("other unknown http \x1b[31mred\n\u202egnp " + "a" * 5000)
    assert notice is not None
    assert notice.text.startswith("\\x1b[31mred \\u202egnp aaa")
    assert len(notice.text) == LONGEST_TEXT


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        (Kind.SPOT, T, -math.inf),
        (Kind.SPOT, None, -math.inf),
        (Kind.SCALE_IN, None, -math.inf),
        (Kind.STATE_CHANGE, T, -math.inf),
        (Kind.OTHER, T + 9e9, -math.inf),
        (Kind.MAINTENANCE, T, T - 900),
        (Kind.MAINTENANCE, None, math.inf),
        (Kind.REBALANCE, T, T - 900),
        (Kind.REBALANCE, None, math.inf),
    ],
)
def test_from_when_nothing_delays_the_delete(kind: Kind, at: float | None, expected: float) -> None:
    assert urgent_at(Interruption(kind, at, "x"), 900.0) == expected
    node = a_node(annotations={names.INTERRUPTION: encode(Interruption(kind, at, "x"))})
    assert is_urgent(node, T - 901, 900.0) is (kind not in PACED)
    assert is_urgent(node, T - 900, 900.0) is (expected <= T - 900)


def test_its_end_is_a_deadline_and_never_a_later_one() -> None:
    settings = PolicySettings(node_groups=(NodeGroup(LabelSelector(), 600.0),))

    def deadline(**annotations: str) -> float | None:
        due = deadline_of(a_node(deletion_timestamp=T, annotations=annotations), None, settings)
        return None if due is None else due.at

    assert deadline() == T + 600
    assert deadline(**{names.INTERRUPTION: "spot 2026-01-01T00:02:00Z aws"}) == T + 120
    assert deadline(**{names.INTERRUPTION: "spot 2026-01-01T00:20:00Z aws"}) == T + 600
    assert deadline(**{names.INTERRUPTION: "scale-in unknown aws"}) == T + 600
    earlier = {names.TERMINATION_TIMESTAMP: "2026-01-01T00:01:00Z", names.INTERRUPTION: "spot 2026-01-01T00:02:00Z aws"}
    assert deadline(**earlier) == T + 60


def test_it_is_the_first_reason_and_urgent_from_its_lead_on() -> None:
    value = encode(Interruption(Kind.MAINTENANCE, T + 3600, "conditions"))
    labels = {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}
    node = a_node("n1", annotations={names.INTERRUPTION: value}, labels=labels, conditions=READY)
    triggers = triggers_of((node,), None, PolicySettings())
    assert [each.cause for each in triggers] == [Cause.INTERRUPTED, Cause.TERMINABLE]
    assert triggers[0].message == (
        "node n1: maintenance notice from conditions: the machine goes at 2026-01-01T01:00:00Z"
    )
    assert reason_of(T, triggers) == "interruption"
    paced = due_at(T, triggers, lambda _: NO_NODES, PolicySettings())
    assert (paced.is_urgent, paced.next_trigger) == (False, T + 2700)
    urgent = due_at(T + 2700, triggers, lambda _: NO_NODES, PolicySettings())
    assert (urgent.is_urgent, urgent.next_trigger) == (True, None)
