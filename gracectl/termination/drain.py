"""The second step: the pods leave, as the plan allows; this is where a termination spends its time.

The plan decides, the evictor asks; this step hands one to the other and tells people what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.eviction.lane import Candidate
from gracectl.model import names
from gracectl.policy.explain import brief, explain
from gracectl.policy.plan import NodeView, PodPlan, plan
from gracectl.termination.announce import announce
from gracectl.termination.conditions import set_condition
from gracectl.termination.pods import announce_ambiguity
from gracectl.termination.steps import Answer, Proceed, Tools, Wait
from gracectl.termination.termination import Termination


async def drain(tools: Tools, termination: Termination) -> Answer:
    """Offer the pods whose turn it is; done when nothing is waited for and the minimum time has passed."""
    now = tools.clock.now()
    decision = plan(view_of(tools, termination), now)
    is_first_look = termination.plan is None
    termination.plan = decision
    tools.evictor.want(termination.node.name, candidates(decision.leaving, termination))
    # The server is asked about the first pod of such a lane only; the owners of the others want to know, too.
    for candidate in candidates((entry for entry in decision.leaving if entry.is_ambiguous), termination):
        announce_ambiguity(tools.recorder, candidate)
    if decision.drained:
        await set_condition(tools, termination, names.DRAINED, names.TRUE, "Drained", "all pods are gone")
        return Proceed()
    # The minimum time after the last pod needs no condition: nobody has to be told of two seconds.
    waits_for = brief(decision) or "no pod is left; one may have been bound in the instant of the cordon"
    if decision.left:
        message = explain(decision)
        if is_first_look:
            announce(tools, termination, names.EventReason.DRAINING, message)
        await set_condition(tools, termination, names.DRAINED, names.FALSE, "Draining", message)
    patience = tools.settings.status_interval_seconds
    if decision.next_change is not None:
        # Counted from now: the condition may have taken its time.
        patience = min(patience, decision.next_change - tools.clock.now())
    return Wait(max(patience, 0.0), waits_for)


def view_of(tools: Tools, termination: Termination) -> NodeView:
    """What the caches show of the node at this instant; volumes are looked at when the pods are gone."""
    pods = tools.observed.pods_on(termination.node.name)
    return NodeView(
        node=termination.node,
        pods=pods,
        budgets=tools.observed.budgets_by_pod(pods),
        cordoned_at=termination.cordoned_at,
        settings=tools.settings.policy,
    )


def candidates(entries: Iterable[PodPlan], termination: Termination) -> list[Candidate]:
    """Pods whose turn it is, as the evictor wants them."""
    return [
        Candidate(
            namespace=entry.pod.namespace,
            name=entry.pod.name,
            uid=entry.pod.uid,
            node=termination.node.name,
            budgets=entry.budgets,
            terminating_since=termination.started,
        )
        for entry in entries
    ]
