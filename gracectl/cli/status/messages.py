"""What is said of nodes that are under way: where each stands, who holds it, why, and for how long.

Invariant: whoever prints, whether once, live or line by line, says the same. Instants of a scene are Unix seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from gracectl.cli.format import elapsed
from gracectl.cli.plan.messages import cause_of, counted, held, in_lane
from gracectl.cli.status.follow import Gone, Scene
from gracectl.inspect.status import NodeClaimStatus, NodeStatus, PodStatus, State
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.model.times import format_time
from gracectl.policy.explain import HELD, URGENCY, listed
from gracectl.policy.plan import Blocker, Outcome

T = TypeVar("T")

FEW = 10
"""Pods of a node that are told one by one; the others are counted."""

FEW_NODES = 8
"""Nodes whose pods are told; of more it is told what holds them all in all."""

FEW_CAUSES = 8
"""Of each state, the most widespread ones first."""

FEW_ALIKE = 3
"""Of those that the same holds."""

UNLIMITED = "protection.maximumSeconds is not set: pods that are protected for ever hold their nodes for ever"

BEING_DRAINED = "being drained for maintenance"

STATES = {
    State.ENDING: "ending",
    State.KEPT: "kept drained",
    State.RETURNING: "given back",
    State.PENDING: "waiting to end",
    State.IDLE: "left alone",
}

SPELT = {Outcome.DELETE: "deleted", Outcome.EVICT: "leaving"}
"""What is shown of outcomes whose own names are orders."""


class PodWords(msgspec.Struct, frozen=True):
    """A pod that holds its node: how it stands, for how long, and why."""

    name: str
    state: str
    held_for: str
    why: str


class NodeWords(msgspec.Struct, frozen=True):
    """One node. `deadline`: empty where none counts. `others`: the pods that are only counted."""

    name: str
    headline: str
    deadline: str
    pods: tuple[PodWords, ...]
    others: str


class Cause(msgspec.Struct, frozen=True):
    """What holds pods of several nodes: of how many, and for how long the one that has been held for longest."""

    state: str
    why: str
    pods: int
    nodes: int
    held_for: str


def is_unlimited(scene: Scene) -> bool:
    """Whether a pod is protected for ever, and no maximum ends that."""
    pods = (pod for node in scene.nodes for pod in node.pods or ())
    return scene.longest_protection is None and any(
        pod.entry.protection is not None and pod.entry.protection.lasting != "time" for pod in pods
    )


def title(scene: Scene) -> str:
    """`2 nodes are ending, 1 is kept drained (2026-01-01T00:00:00Z by the server's clock)`."""
    if not scene.is_complete:
        return "The cluster is being looked at"
    found = Counter(map(state_words, scene.nodes))
    parts: list[str] = []
    for words in (STATES[State.ENDING], BEING_DRAINED, *STATES.values()):
        if number := found.pop(words, 0):
            parts.append(f"{number if parts else counted(number, 'node')} {'is' if number == 1 else 'are'} {words}")
    told = ", ".join(parts) or "No node is ending or drained"
    return f"{told} ({format_time(scene.at)} by the server's clock)"


def state_words(node: NodeStatus) -> str:
    """What is done to it: `ending`, `being drained for maintenance`."""
    return BEING_DRAINED if node.state is State.KEPT and not node.is_done else STATES[node.state]


def step_of(node: NodeStatus) -> str:
    """Where it stands: the name of a step, or what there is in the place of one."""
    return node.step or ("-" if node.state is State.IDLE else "nobody")


def time_of(node: NodeStatus, at: float) -> str:
    """For how long that was asked for; empty if nobody knows."""
    return "" if node.since is None else elapsed(at - node.since)


def left_of(node: NodeStatus) -> str:
    """How many pods hold it."""
    if not node.step or node.state in (State.RETURNING, State.PENDING):
        return ""
    return "?" if node.pods is None else str(len(node.pods))


def ends_in(node: NodeStatus, at: float) -> str:
    """The time until its deadline."""
    if node.deadline is None:
        return "-"
    return elapsed(node.deadline.at - at) if node.deadline.at > at else "overdue"


def waits_for(node: NodeStatus) -> str:
    """In one line what a node waits for; empty for nothing that anybody knows."""
    grave = next((each.message for each in node.obstacles if each.kind.is_blocking), "")
    return grave or node.waits_for


def described(node: NodeStatus, at: float, *, verbose: bool) -> NodeWords:
    """One node with its pods. `verbose`: each of them."""
    pods = node.pods or ()
    shown = pods if verbose or len(pods) <= FEW else _most_urgent(pods)
    told = {pod.entry.pod.uid for pod in shown}
    return NodeWords(
        name=node.name,
        headline=_headline(node, at),
        deadline=_deadline(node, at),
        pods=tuple(_pod(pod, at) for pod in shown),
        others=_counted([pod for pod in pods if pod.entry.pod.uid not in told]),
    )


def _most_urgent(pods: Iterable[PodStatus]) -> Sequence[PodStatus]:
    """They come with what blocks first; those that nothing holds need no words."""
    found = _first_of_each(pods, _likeness, FEW_ALIKE)
    return [pod for pod in found if pod.entry.outcome is not Outcome.EVICT][:FEW]


def _first_of_each(things: Iterable[T], kind: Callable[[T], object], most: int) -> list[T]:
    """So many of each kind at most, in their order."""
    alike: Counter[object] = Counter()
    found = []
    for thing in things:
        alike[kind(thing)] += 1
        if alike[kind(thing)] <= most:
            found.append(thing)
    return found


def _likeness(pod: PodStatus) -> tuple[object, ...]:
    """Equal for pods that the same holds."""
    entry = pod.entry
    return entry.outcome, entry.budgets, entry.protection and entry.protection.description


def causes(scene: Scene) -> tuple[tuple[Cause, ...], int]:
    """What holds the pods of all nodes, what blocks first and the most widespread first; and how many more there are.

    What waits for others, or has been told to leave, is no cause.
    """
    held: dict[tuple[object, ...], list[tuple[str, PodStatus]]] = {}
    for node in scene.nodes:
        for pod in node.pods or ():
            is_unknown = pod.entry.blocker is Blocker.UNDECODABLE
            if is_unknown or pod.entry.outcome in (Outcome.BLOCKED, Outcome.PROTECTED, Outcome.DELETE):
                held.setdefault(_likeness(pod), []).append((node.name, pod))
    in_order = sorted(held.values(), key=lambda found: (URGENCY.index(_outcome(found)), -len(found)))
    told = tuple(
        Cause(
            state=state_of(found[0][1]),
            why=_cause(found[0][1]),
            pods=len(found),
            nodes=len({node for node, _ in found}),
            held_for=elapsed(scene.at - min(pod.since for _, pod in found)),
        )
        for found in _first_of_each(in_order, _outcome, FEW_CAUSES)
    )
    return told, len(in_order) - len(told)


def _outcome(alike: Sequence[tuple[str, PodStatus]]) -> Outcome:
    """Of pods that the same holds, each behind the name of its node."""
    return alike[0][1].entry.outcome


def _cause(pod: PodStatus) -> str:
    """Of pods whose instants differ."""
    return pod.entry.reason if pod.entry.protection is None else pod.entry.protection.description


def _headline(node: NodeStatus, at: float) -> str:
    if node.state is State.IDLE:
        return "nobody has asked for its end or its drain"
    since = "" if node.since is None else f" for {elapsed(at - node.since)}, since {format_time(node.since)}"
    return f"{state_words(node)}{since}; {_where(node)}"


def _where(node: NodeStatus) -> str:
    if node.pods is None:
        return f"at step {step_of(node)}; its pods are being listed"
    if node.pods and node.step == "drain":
        return f"at step drain, {counted(len(node.pods), 'pod')} left"
    if node.is_done:
        return node.waits_for
    where = f"at step {node.step}" if node.step else "nobody drains it"
    return f"{where}: {node.waits_for}" if node.step and node.waits_for else where


def _deadline(node: NodeStatus, at: float) -> str:
    if node.state is not State.ENDING:
        return ""
    if node.deadline is None:
        return "no deadline: it takes as long as its pods need"
    left, instant = node.deadline.at - at, format_time(node.deadline.at)
    when = f"in {elapsed(left)} ({instant})" if left > 0 else f"passed {elapsed(-left)} ago ({instant})"
    return f"deadline {when}: {cause_of(node.deadline, node.origin)}"


def _pod(pod: PodStatus, at: float) -> PodWords:
    key = pod.entry.pod.key
    return PodWords("/".join(key), state_of(pod), elapsed(max(at - pod.since, 0.0)), why(pod, at))


def state_of(pod: PodStatus) -> str:
    """`blocked`, `protected`, `waiting`, `terminating`, `leaving`, `deleted`."""
    return SPELT.get(pod.entry.outcome, pod.entry.outcome.value)


def why(pod: PodStatus, at: float) -> str:
    """Why a pod is still there, until when at least, and what the deadline does to it."""
    entry = pod.entry
    if entry.outcome is Outcome.TERMINATING:
        words = _grace(entry.until, at)
    elif entry.outcome is Outcome.EVICT:
        turn = in_lane(entry, pod.place)
        words = f"budget {'/'.join(entry.budgets[0])} lets it go in its turn: {turn}" if turn else "nothing holds it"
    elif entry.outcome is Outcome.BLOCKED:
        words = _and(entry.reason, in_lane(entry, pod.place))
    else:
        words = held(entry) or entry.reason
        if entry.until is not None:
            words += f", in {elapsed(max(entry.until - at, 0.0))}"
    if entry.delete_at is not None and entry.outcome in HELD:
        words += f"; deleted in {elapsed(max(entry.delete_at - at, 0.0))} at the latest"
    return words


def _and(words: str, more: str) -> str:
    return f"{words}; {more}" if more else words


def _grace(until: float | None, at: float) -> str:
    if until is None:
        return "was told to leave"
    return f"its grace ends in {elapsed(until - at)}" if until > at else f"its grace ended {elapsed(at - until)} ago"


def _counted(pods: Sequence[PodStatus]) -> str:
    """`and 12 more: 9 waiting, 3 leaving`."""
    if not pods:
        return ""
    found = ", ".join(f"{number} {state}" for state, number in Counter(map(state_of, pods)).most_common())
    return f"and {len(pods)} more: {found} (-v lists them)"


# -- beside the nodes --------------------------------------------------------------------------------------------------


def of_claim(claim: NodeClaimStatus, at: float) -> str:
    """A claim whose end no node shows."""
    has = f"whose node {listed(claim.nodes)} is not deleted yet" if claim.nodes else "which has no node"
    ends = "" if claim.deadline is None else f", by {format_time(claim.deadline.at)}"
    says = f": {claim.waits_for}" if claim.waits_for else ""
    return f"NodeClaim {claim.name}, {has}, is ending for {elapsed(at - claim.since)}{ends}{says}"


def of_gone(gone: Gone) -> str:
    """`worker-1 is gone after 5:03`."""
    return f"{gone.name} is gone{'' if gone.after_seconds is None else f' after {elapsed(gone.after_seconds)}'}"


def of_all_gone(gone: Iterable[Gone], most: int = 3) -> str:
    """The last ones first; the others are counted."""
    words = [of_gone(each) for each in gone][::-1]
    return listed(words, most)


def of_interruption(interruption: ConnectionLoss, at: float) -> str:
    """That what is shown may be old."""
    if interruption.since is None:
        return f"the cluster has not been seen yet, and is asked again: {interruption.error}"
    old = elapsed(max(at - interruption.since, 0.0))
    return f"the connection is lost; this is how it was {old} ago, and is asked for again: {interruption.error}"
