"""What `gracectl drain` and `terminate` show before they ask and request."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from support.builders import NOW, a_budget, a_node, a_pod, ending
from support.forecasts import FOR_EVER, REPLICA, crowd, never, predicted

from gracectl.cli.console import VisibleConsole, text_of
from gracectl.cli.drain.preview import MANY, NeverDrained, Preview, endless
from gracectl.inspect.forecast import DrainForecast
from gracectl.kube.auth.credentials import ClusterAddress

CLUSTER = ClusterAddress("prod", "https://10.0.0.1:6443")


def shown(forecast: DrainForecast | None, width: int = 160, **more: Any) -> list[str]:
    """The lines of a termination's preview."""
    names = ["worker-1"] if forecast is None else [node.name for node in forecast.nodes]
    options = {"cluster": CLUSTER, "for_maintenance": False, **more}
    preview = Preview(nodes=[a_node(name) for name in names], forecast=forecast, **options)
    console: Console = VisibleConsole(width=width, force_terminal=False)
    return text_of(console, preview.rendered()).splitlines()


def blocked(number: int) -> DrainForecast:
    """So many nodes with a pod each, of which the last one's is protected indefinitely, and all are under one
    budget."""
    budget = (a_budget(disruptions_allowed=0, expected_pods=9, desired_healthy=9),)
    nodes = [ending(f"node-{n}", a_pod(f"web-{n}", owners=REPLICA), budgets=budget) for n in range(1, number)]
    return predicted(*nodes, ending(f"node-{number}", a_pod("notebook", owners=REPLICA, **FOR_EVER)))


def test_it_says_where_how_much_and_until_when() -> None:
    two = predicted(
        ending("node-1", a_pod("quick", owners=REPLICA, grace_seconds=5)),
        ending("node-2", a_pod("slow", owners=REPLICA, grace_seconds=60), a_pod("other", owners=REPLICA)),
    )
    assert shown(two)[:2] == [
        "cluster: prod (https://10.0.0.1:6443)",
        "terminate 2 nodes, 3 pods; all drained in 0:02-1:00",
    ]
    assert shown(two, cluster=None)[0].startswith("terminate 2 nodes, ")
    (one,) = (line for line in shown(never(), for_maintenance=True) if line.startswith("drain "))
    assert one == "drain worker-1, 5 pods; never drained"


def test_each_cause_of_a_drain_that_never_ends_is_named_once_with_what_helps() -> None:
    lines = shown(blocked(5))
    assert lines[1] == "terminate 5 nodes, 5 pods; never drained"
    causes = [line for line in lines if line.startswith("  ! ")]
    assert causes == [
        "  ! never ends: 4 pods on node-1, node-2, node-3, and 1 more: budget shop/web allows no disruption now "
        "(9 of 9 healthy, 9 required)",
        "  ! never ends: shop/notebook on node-5: protected by do-not-disrupt",
    ]
    helps = [line for line in lines if line.startswith("    -> ")]
    assert helps[0].startswith("    -> run more pods, or widen it: kubectl patch pdb -n shop web --type merge -p ")
    assert helps[1].startswith("    -> end its protection: kubectl annotate pod -n shop notebook ")


def test_of_many_nodes_those_that_never_drain_are_first_and_the_others_counted() -> None:
    quick = [ending(f"node-{n}", a_pod(f"web-{n}", owners=REPLICA)) for n in range(1, 40)]
    forecast = predicted(*quick, ending("node-40", a_pod("notebook", owners=REPLICA, **FOR_EVER)))
    lines = shown(forecast, width=80)
    assert lines[1:3] == [
        "terminate 40 nodes, 40 pods; drained: never for 1 node (node-40), 0:02-0:30 for",
        "the others",
    ]
    rows = [line.split()[0] for line in lines if line.startswith("node-")]
    assert rows == ["node-40", *(f"node-{n}" for n in range(1, MANY))]
    assert f"… and {40 - MANY} more nodes; --dry-run shows all" in lines
    whole = shown(forecast, width=80, is_whole=True)
    assert [line.split()[0] for line in whole if line.startswith("node-")] == [f"node-{n}" for n in range(1, 41)]


def test_many_warnings_of_a_kind_are_counted_unless_the_drain_never_ends() -> None:
    lonely = predicted(*(ending(f"node-{n}", a_pod(f"lonely-{n}")) for n in range(1, 9)))
    (line,) = (line for line in shown(lonely) if line.startswith("  ! "))
    assert line == (
        "  ! node-1: shop/lonely-1 has no controller: it is not recreated elsewhere; and 7 more of this kind"
    )
    whole = [line for line in shown(lonely, is_whole=True) if line.startswith("  ! ")]
    assert len(whole) == 8


@pytest.mark.parametrize("width", [80, 160])
def test_it_fits_the_terminal_and_breaks_no_name(width: int) -> None:
    lines = shown(crowd(), width=width)
    assert max(map(len, lines)) <= width
    assert any("ip-10-0-1-17.eu-central-1.compute.internal" in line for line in lines)


def test_without_a_forecast_it_says_why() -> None:
    assert shown(None, refusal="list pods: forbidden: add the verb list") == [
        "cluster: prod (https://10.0.0.1:6443)",
        "terminate worker-1; pods unknown: no forecast",
        "  ! no forecast: list pods: forbidden: add the verb list",
    ]


def test_a_context_cannot_control_the_terminal() -> None:
    first, *_ = shown(None, cluster=ClusterAddress("prod\x1b[2J\u202e", "https://10.0.0.1:6443"), refusal="none")
    assert first == "cluster: prod\\x1b[2J\\u202e (https://10.0.0.1:6443)"


def test_only_what_is_requested_now_needs_force() -> None:
    assert [node.name for node in endless(never())] == ["worker-1"]
    begun = predicted(ending("worker-1", a_pod("notebook", **FOR_EVER), since=NOW - 60))
    assert endless(begun) == ()
    deadline = predicted(ending("worker-1", a_pod("notebook", **FOR_EVER), deadline=900))
    assert endless(deadline) == ()
    assert str(NeverDrained(endless(never()))) == (
        "nothing was changed: worker-1 would never be drained, for the reasons above; resolve them, or give --force"
    )
