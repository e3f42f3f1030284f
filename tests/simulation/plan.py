"""Plan of a run: plain data, made from a seed before anything runs, and made smaller when a run of it fails.

Every part can be left out: what acts on something that the plan no longer has does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.server.api import JsonObject
from msgspec.structs import replace

from simulation.terms import FOREVER, Terms

REFUGE = "n0"
"""Node to which nothing happens: what is evicted finds room there."""
POOL = "pool"
"""Label of nodes with the period of their node group, as it is written."""
PERIODS: Mapping[str, float] = {"0s": 0.0, "3s": 3.0, "20s": 20.0, "1m": 60.0, "5m": 300.0}
"""Termination grace periods, and their seconds."""


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Node of a world. `claim`: its NodeClaim, where the cluster knows them."""

    name: str
    labels: dict[str, str] = {}
    claim: ClaimSpec | None = None

    @property
    def period(self) -> str:
        """Termination grace period as written; "" for none."""
        return (self.claim.termination_grace_period if self.claim else "") or self.labels.get(POOL, "")


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens `at` seconds after the beginning: `what`, to `subject`, for `seconds` where it lasts."""

    at: float
    what: str
    subject: str = ""
    seconds: float = 0.0
    value: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes that it is about."""
        if self.what == COPIED:
            return (f"{self.subject}-copy",)
        return (self.subject, f"{self.subject}-back") if self.what == "return machine" else (self.subject,)

    def __str__(self) -> str:
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        value = "" if self.value is None else f" {msgspec.json.encode(self.value).decode()}"
        return f"{self.what} {self.subject}{lasts}{value}".replace("  ", " ")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. `settings` as in the settings file; `cluster`: options of the simulated cluster."""

    seed: int
    settings: dict[str, Any] = {}
    cluster: dict[str, Any] = {}
    processes: int = 1
    elects: bool = False
    knows_claims: bool = True
    nodes: tuple[NodePlan, ...] = ()
    objects: tuple[JsonObject, ...] = ()
    history: tuple[Act, ...] = ()
    faults: tuple[Act, ...] = ()

    @property
    def terms(self) -> Terms:
        """What this plan promises."""
        return _terms(self)

    @property
    def size(self) -> int:
        """Number of parts."""
        return sum(len(getattr(self, name)) for name in LISTS)

    def without(self, name: str, start: int, stop: int) -> Plan:
        """The plan without these parts of one of its lists."""
        parts: tuple[Any, ...] = getattr(self, name)
        return replace(self, **{name: parts[:start] + parts[stop:]})

    def simpler(self) -> Iterator[Plan]:
        """Plans with one of the choices that are no lists made simpler."""
        if self.processes > 1:
            yield replace(self, processes=1)
        if self.elects and self.processes == 1:
            yield replace(self, elects=False)
        for key in self.settings:
            yield replace(self, settings={name: each for name, each in self.settings.items() if name != key})
        for key in self.cluster:
            yield replace(self, cluster={name: each for name, each in self.cluster.items() if name != key})


LISTS = ("faults", "history", "objects", "nodes")

ENDING = frozenset(
    {
        "delete node",
        "delete claim",
        "label terminable",
        "fail node",
        "partition node",
        "end machine",
        "return machine",
        "recreate claim",
        "interrupt",
    }
)
"""Acts after which a node may go."""
DISTURBING = frozenset({"settings"})
"""Acts that are no faults, and let a controller wait all the same."""
PROMPT_SECONDS, STALL_SECONDS = 12.0, 90.0
"""Nothing that nothing blocks stands still for longer: in a run that nothing disturbs, and after the faults of others.
"""
PROMPT_DEADLINE, DEADLINE_SLACK = 0.5, 5.0
"""Seconds after a deadline in which an instance is asked to terminate: where only kills disturb (its
cloud may take 0.2 s to answer), and else."""
FAIR = frozenset({"kill", "kill near", "latency"})
"""Faults after which a controller is still judged by the clock."""
RACE = "race"
"""Fault by which all is late by a known, small time; and the seconds within which a pod is evicted then."""
RACE_SECONDS = 1.5
CLOCKS, COPIED, LYING = "clocks disagree", "copied providerID", "lying kubelet"
"""Faults that are added to the plans of some seeds, whose other acts stay what they were."""
YIELDING_SECONDS = 60.0
"""So long a lease may be free, or a standby new, after clocks have disagreed."""
REPLACING = frozenset({"end machine", "return machine", "register again", "recreate claim", COPIED})


def _terms(plan: Plan) -> Terms:
    acts = [*plan.history, *plan.faults]
    is_calm = not plan.faults and all(act.what not in DISTURBING for act in plan.history)
    is_fair = plan.processes == 1 and not plan.elects and all(act.what in FAIR for act in plan.faults)
    paused = sum(act.seconds + YIELDING_SECONDS for act in plan.faults if act.what == CLOCKS)
    return Terms(
        asked=frozenset(_asked(plan, acts)),
        replaced=frozenset(name for act in acts if act.what in REPLACING for name in act.names),
        copies=frozenset(name for act in acts if act.what == COPIED for name in act.names),
        faults_end=0.0 if is_calm else FOREVER,
        stall_seconds=PROMPT_SECONDS if is_calm else STALL_SECONDS,
        fair=is_fair,
        deadline_slack=PROMPT_DEADLINE if is_fair else DEADLINE_SLACK + paused,
        elects=plan.elects,
        prompt_seconds=RACE_SECONDS if {act.what for act in plan.faults} == {RACE} else FOREVER,
        clock_error=sum(abs(act.value) for act in plan.faults if act.what in ("clock", "server clock")),
    )


def _campaign_ends(act: Act) -> list[str]:
    """Nodes that a campaign may terminate."""
    return list(act.value["nodeNames"]) if act.value["action"] == "Terminate" else []


def _asked(plan: Plan, acts: list[Act]) -> set[str]:
    """Nodes that something may terminate."""
    expires = any("expireAfter" in group for group in plan.settings.get("nodeGroups", ()))
    asked = {name for act in acts if act.what in ENDING for name in act.names}
    asked |= {name for act in acts if act.what == "campaign" for name in _campaign_ends(act)}
    asked |= {name for act in acts if act.what == COPIED for name in (*act.names, act.subject)}  # it looks unhealthy
    for node in plan.nodes:
        if (node.claim and node.claim.expire_after) or (expires and POOL in node.labels):
            asked.add(node.name)
    # A kubelet that cannot report, or whose reports look old, makes its node unhealthy.
    is_silenced = any(act.what == "webhook" and "nodes/status" in act.value["resources"] for act in plan.faults)
    if "health" in plan.settings and (is_silenced or any(act.what == "server clock" for act in plan.faults)):
        asked |= {node.name for node in plan.nodes}
    return asked
