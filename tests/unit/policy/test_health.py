"""When a node is unhealthy and for how long that is tolerated; when too many are."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_node

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.times import format_time
from gracectl.policy.health import (
    UnhealthyCondition,
    UnhealthyNodes,
    first_untolerated,
    unhealthy_conditions,
    unhealthy_until,
)
from gracectl.policy.settings import ConditionPolicy, HealthSettings

DEFAULT = HealthSettings()
WITH_NETWORK = HealthSettings(conditions=(*DEFAULT.conditions, ConditionPolicy("NetworkUnavailable", "True", 60.0)))


def ready(status: str, since: float | None = NOW - 100, **fields: Any) -> Condition:
    return Condition("Ready", status, last_transition=since, **fields)


def network(status: str, since: float = NOW - 100) -> Condition:
    return Condition("NetworkUnavailable", status, last_transition=since)


@pytest.mark.parametrize(("settings", "conditions", "tolerated_until"), [
    (DEFAULT, [ready("True")], None), (DEFAULT, [ready("False")], NOW + 800),
    (DEFAULT, [ready("Unknown")], NOW + 800),
    (DEFAULT, [ready("Unknown", NOW - 5000)], NOW - 4100),
    # Unknown since when: unhealthy, and never terminated for it.
    (DEFAULT, [ready("Unknown", None)], math.inf),
    # Never heard of: from its creation on, both before and after Kubernetes calls it Unknown.
    (DEFAULT, [], NOW - 300 + 900),
    (DEFAULT, [ready("Unknown", NOW - 240, reason=names.NEVER_REPORTED)], NOW - 300 + 900),
    (DEFAULT, [ready("True"), Condition("MemoryPressure", "True", last_transition=NOW)], None),
    (DEFAULT, [ready("True"), network("True")], None),
    (WITH_NETWORK, [ready("True"), network("False")], None),
    (WITH_NETWORK, [ready("True"), network("True")], NOW - 40),
    # Several: whichever ends first.
    (WITH_NETWORK, [ready("False"), network("True")], NOW - 40),
    (WITH_NETWORK, [ready("False", NOW - 890), network("True", NOW)], NOW + 10),
    (WITH_NETWORK, [ready("False", None), network("True", NOW)], NOW + 60),
    (HealthSettings(conditions=(ConditionPolicy("NetworkUnavailable", "Unknown", 1.0),)), [], None),
    (HealthSettings(conditions=(ConditionPolicy("Ready", "False", 1.0),)), [], None),
    (HealthSettings(conditions=()), [ready("False")], None),
    (HealthSettings(enabled=False), [ready("False")], None),
    (HealthSettings(enabled=False), [], None),
])  # fmt: skip
def test_how_long_what_is_bad_is_tolerated(
    settings: HealthSettings, conditions: list[Condition], tolerated_until: float | None
) -> None:
    node = a_node(created=NOW - 300, conditions=tuple(conditions))
    first = first_untolerated(unhealthy_conditions(node, settings))
    assert (first.tolerated_until if first else None) == tolerated_until
    assert (unhealthy_until(node, settings) == math.inf) is (tolerated_until is not None)


@pytest.mark.parametrize(("settings", "conditions", "until"), [
    (DEFAULT, [ready("True", NOW - 100)], NOW + 200),
    (DEFAULT, [ready("True", NOW - 1000)], NOW - 700),
    (DEFAULT, [ready("True", None)], -math.inf), (DEFAULT, [ready("Unknown", NOW)], math.inf),
    # What becomes Ready for the first time has not recovered from anything.
    (DEFAULT, [ready("True", NOW - 5000 + 60)], -math.inf),
    (DEFAULT, [ready("True", NOW - 5000 + 901)], NOW - 5000 + 1201),
    (DEFAULT, [ready("True", NOW - 1000), network("False", NOW)], NOW - 700),
    (WITH_NETWORK, [ready("True", NOW - 1000), network("False", NOW)], NOW + 300),
    (HealthSettings(enabled=False), [ready("True", NOW)], -math.inf),
])  # fmt: skip
def test_when_a_node_stops_being_unhealthy(settings: HealthSettings, conditions: list[Condition], until: float) -> None:
    assert unhealthy_until(a_node(created=NOW - 5000, conditions=tuple(conditions)), settings) == until


def test_every_bad_condition_is_named() -> None:
    node = a_node(conditions=(network("True", 5.0), ready("Unknown", 7.0)))
    assert unhealthy_conditions(node, WITH_NETWORK) == (
        UnhealthyCondition("Ready", "Unknown", 7.0, 900.0),
        UnhealthyCondition("NetworkUnavailable", "True", 5.0, 60.0),
    )


@pytest.mark.parametrize(("maximum", "managed", "allowed"), [
    ("20%", 0, 0), ("20%", 1, 1), ("20%", 5, 1), ("20%", 6, 2), ("20%", 10, 2), ("20%", 5000, 1000), ("0%", 10, 0),
    ("100%", 7, 7), (0, 10, 0), (3, 10, 3), (3, 1, 3),
])  # fmt: skip
def test_how_many_may_be_unhealthy(maximum: int | str, managed: int, allowed: int) -> None:
    tally = UnhealthyNodes(unhealthy=allowed, managed=managed, maximum=maximum)
    assert tally.allowed == allowed
    assert tally.excess == 0
    assert msgspec.structs.replace(tally, unhealthy=allowed + 1).excess == 1
    assert msgspec.structs.replace(tally, recovering=2).excess == 2


@given(percent=st.integers(0, 100), managed=st.integers(0, 6000), data=st.data())
def test_the_brake_holds_beyond_the_share_by_a_whole_node(percent: int, managed: int, data: st.DataObject) -> None:
    unhealthy = data.draw(st.integers(0, managed))
    # By counting: the fewest nodes that are at least that share.
    may_be = next(n for n in range(managed + 1) if n * 100 >= percent * managed)
    recovering = data.draw(st.integers(0, managed - unhealthy))
    tally = UnhealthyNodes(unhealthy=unhealthy, recovering=recovering, managed=managed, maximum=f"{percent}%")
    assert tally.excess == max(0, unhealthy + recovering - may_be)


@given(
    percent=st.integers(0, 100),
    managed=st.integers(1, 60),
    steps=st.lists(st.tuples(st.sampled_from(["sick", "end", "gone"]), st.integers(1, 9)), max_size=40),
)
def test_a_spreading_outage_cannot_outrun_the_brake(percent: int, managed: int, steps: list[tuple[str, int]]) -> None:
    """In one instant: as long as no node has gone, no more than the share is terminated."""
    sick, ended = 0, 0
    for step, count in steps:
        if step == "sick":
            sick = min(managed, sick + count)
        elif step == "end":
            for _ in range(count):
                if ended < sick and not UnhealthyNodes(unhealthy=sick, managed=managed, maximum=f"{percent}%").excess:
                    ended += 1
            assert ended * 100 <= percent * managed + 99
        elif ended:
            ended, sick, managed = ended - 1, sick - 1, managed - 1
            assert ended <= sick


def test_figures_for_people() -> None:
    tally = UnhealthyNodes(unhealthy=3, managed=10, maximum="20%")
    assert str(tally) == "3 of 10 managed nodes are unhealthy; 2 (20%) may be"
    recovering = msgspec.structs.replace(tally, recovering=1)
    assert str(recovering) == ("3 of 10 managed nodes are unhealthy, and 1 was until a short while ago; 2 (20%) may be")
    assert str(UnhealthyNodes(unhealthy=1, managed=1, maximum=0)) == "1 of 1 managed node is unhealthy; 0 may be"


@pytest.mark.parametrize("maximum", ["", "20", "-1%", "1.5%", "20 %", -1])
def test_a_maximum_that_means_nothing_is_refused(maximum: int | str) -> None:
    with pytest.raises(ValueError, match=r"not an integer or a percentage|is negative"):
        UnhealthyNodes(unhealthy=0, managed=0, maximum=maximum).validate()


@pytest.mark.parametrize(
    ("given_back", "tolerated_until"), [(None, NOW - 4100), (NOW - 50, NOW + 850), (NOW - 9000, NOW - 4100)]
)
def test_faults_in_maintenance_count_from_the_uncordon(given_back: float | None, tolerated_until: float) -> None:
    annotations = {} if given_back is None else {names.UNCORDONED: format_time(given_back)}
    node = a_node(annotations=annotations, conditions=(ready("Unknown", NOW - 5000),))
    (ailment,) = unhealthy_conditions(node, DEFAULT)
    assert ailment.tolerated_until == tolerated_until
    assert unhealthy_until(node, DEFAULT) == math.inf


def test_an_unknown_start_stays_unknown_for_an_uncordoned_node() -> None:
    node = a_node(annotations={names.UNCORDONED: format_time(NOW)}, conditions=(ready("Unknown", None),))
    (ailment,) = unhealthy_conditions(node, DEFAULT)
    assert ailment.since is None


@pytest.mark.parametrize("annotations", [{names.KEEP_DRAINED: "x"}, {names.CORDONED: ""}])
@pytest.mark.parametrize("conditions", [(), (ready("False"),), (ready("True", NOW - 10),)])
def test_a_node_in_maintenance_is_not_unhealthy(annotations: dict[str, str], conditions: tuple[Condition, ...]) -> None:
    kept = a_node(created=NOW - 100_000, annotations=annotations, conditions=conditions)
    assert unhealthy_until(kept, DEFAULT) == -math.inf
    assert unhealthy_until(msgspec.structs.replace(kept, annotations={}), DEFAULT) > NOW
    assert unhealthy_until(msgspec.structs.replace(kept, deletion_timestamp=NOW), DEFAULT) > NOW
