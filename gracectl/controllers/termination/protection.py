"""Events about protected pods that block a drain: until when, and when their protection has ended.

Called with every plan of a drain. Invariants: each end of a protection makes one Event on its pod; node and claim get
one Event for all pods, so that a crowded node does not crowd out other Events.
"""

from __future__ import annotations

from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.events import Event
from gracectl.controllers.termination.state import NodeState
from gracectl.policy.plan import Plan
from gracectl.policy.protected_pods import ProtectionEnd, update_protection
from gracectl.policy.protection import invalid_annotation


def protection_events(context: StepContext, state: NodeState, plan: Plan) -> list[Event]:
    """Take over the protected pods of this plan; returns Events on what has changed since the plan before."""
    memo, now, node = state.drain, context.clock.now(), state.node.name
    before, known_values = memo.protected_pods, memo.invalid_annotations
    update = update_protection(before, plan, now, state.started)
    memo.protected_pods, memo.invalid_annotations = update.protected_pods, _invalid_annotations(plan)
    for ended in update.ended:
        pod = ended.protected
        context.statistics.protection_durations.note(pod.protection.kind, ended.how, now - pod.since)
    if before is None and state.is_resumed:
        return []  # emitted before the restart
    elapsed = [each.protected for each in update.ended if each.how is ProtectionEnd.ELAPSED]
    elapsed = [each for each in elapsed if each.pod.uid not in update.protected_pods]
    protected = update.protected_pods.values()
    # The node first: its Events are few, and the Events of its pods must not crowd them out.
    emitted = [events.protection_elapsed(elapsed, protected)] if elapsed else []
    if events.last_end(protected) not in (None, events.last_end((before or {}).values())):
        emitted.append(events.protection(protected, plan.deadline))
    emitted += [events.pod_protection_elapsed(each, node) for each in elapsed]
    emitted += [events.pod_protected(each, node, plan.deadline) for each in update.begun]
    for entry in plan.left:
        value = memo.invalid_annotations.get(entry.pod.uid)
        if value is not None and value != known_values.get(entry.pod.uid):
            emitted.append(events.invalid_protection(entry.pod, context.settings.policy.protection))
    return emitted


def _invalid_annotations(plan: Plan) -> dict[str, str]:
    running = (entry.pod for entry in plan.left if entry.pod.deletion_timestamp is None)
    return {pod.uid: value for pod in running if (value := invalid_annotation(pod)) is not None}
