"""The small rules: names that manifests rely on, int-or-percent, tolerations, what the structs answer by themselves."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.model import names
from gracectl.model.budget import scaled_value
from gracectl.model.foreign import harmless
from gracectl.model.meta import Condition
from gracectl.model.node import Node, Taint, tolerates
from gracectl.model.pod import Toleration


def test_names_that_existing_manifests_use_do_not_change() -> None:
    assert names.FINALIZER == "karpenter.sh/termination"
    assert names.DO_NOT_DISRUPT == "karpenter.sh/do-not-disrupt"
    assert names.DO_NOT_EVICT == "karpenter.sh/do-not-evict"
    assert names.DISRUPTED_TAINT_KEY == "karpenter.sh/disrupted"
    assert names.TERMINATION_TIMESTAMP == "karpenter.sh/nodeclaim-termination-timestamp"
    assert names.LIFECYCLE_PHASE == "karpenter.sh/lifecycle-phase"
    assert names.EXCLUDE_FROM_LOAD_BALANCERS == "node.kubernetes.io/exclude-from-external-load-balancers"
    assert (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING) == (
        "Drained", "VolumesDetached", "InstanceTerminating",
    )  # fmt: skip


def test_event_reasons_are_upper_camel_case_and_unique() -> None:
    reasons = [str(reason) for reason in names.EventReason]
    assert all(reason.isalpha() and reason[0].isupper() for reason in reasons)
    assert len(set(reasons)) == len(names.EventReason.__members__)


@given(st.integers(min_value=-1000, max_value=1000), st.integers(min_value=0, max_value=100_000))
def test_percentages_are_exact(percent: int, total: int) -> None:
    share = Fraction(percent * total, 100)
    assert scaled_value(f"{percent}%", total, round_up=True) == math.ceil(share)
    assert scaled_value(f"{percent}%", total, round_up=False) == math.floor(share)


@pytest.mark.parametrize("value", ["", "%", "10", "1_0%", "10 %", "10%%", "١%", "9" * 5000 + "%"])
def test_what_is_no_percentage_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="not an integer or a percentage"):
        scaled_value(value, 10, round_up=True)


def test_an_unknown_operator_tolerates_nothing() -> None:
    assert not tolerates([Toleration(operator="Near")], Taint("a"))


def test_exists_without_a_key_tolerates_every_taint_of_its_effect() -> None:
    everything = Toleration(operator="Exists", effect=names.NO_SCHEDULE)
    assert tolerates([everything], Taint("a", "b", names.NO_SCHEDULE))
    assert not tolerates([everything], Taint("a", "b", "NoExecute"))


def test_a_node_is_ready_only_while_it_says_so() -> None:
    def node(*conditions: Condition) -> Node:
        return Node("a", "uid", conditions=conditions)

    assert node(Condition("Ready", "True")).ready
    assert not node(Condition("Ready", "False")).ready
    assert not node(Condition("Ready", "Unknown")).ready
    assert not node(Condition("DiskPressure", "True")).ready
    assert not node().ready


@pytest.mark.parametrize(("text", "shown"), [
    ("4 hours", "4 hours"), ("grüß", "grüß"), ("\x1b[2J\nx\u202e", r"\x1b[2J\nx\u202e"), ("y" * 61, "y" * 59 + "…"),
    ("", ""),
])  # fmt: skip
def test_what_others_have_written_is_shown_without_what_a_terminal_obeys(text: str, shown: str) -> None:
    assert harmless(text) == shown
