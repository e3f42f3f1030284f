"""Texts that several commands print: elapsed times, counts, what blocks a pod, where a deadline comes from."""

from __future__ import annotations

from collections.abc import Sequence

from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time
from gracectl.policy.answers import Answer, Never, Total, Unknown, Window
from gracectl.policy.deadlines import Deadline, DeadlineOrigin
from gracectl.policy.eviction_queues import QueuePosition
from gracectl.policy.explain import counted, listed
from gracectl.policy.plan import Outcome, PodPlan

DAY = 86_400

FRESH_SECONDS = 5.0
"""The age of an older forecast is shown."""

LONGEST_ADDRESS = 300
"""Characters of a context or an address that are shown."""

NO_DEADLINE = "deadline: none; the drain takes as long as its pods need"


def cluster_text(cluster: ClusterAddress) -> str:
    """`cluster: kind-prod (https://10.0.0.1:6443)`."""
    server = harmless(cluster.server, LONGEST_ADDRESS)
    if cluster.context is None:
        return f"cluster: {server} (service account of this pod)"
    return f"cluster: {harmless(cluster.context, LONGEST_ADDRESS)} ({server})"


def elapsed(seconds: float) -> str:
    """`0:05`, `4:32`, `1:04:32`, `2d 03:00:00`; whole seconds, rounded down."""
    whole = int(seconds)
    sign = "-" if whole < 0 else ""
    days, rest = divmod(abs(whole), DAY)
    hours, rest = divmod(rest, 3600)
    minutes, seconds_left = divmod(rest, 60)
    if days:
        return f"{sign}{days}d {hours:02}:{minutes:02}:{seconds_left:02}"
    if hours:
        return f"{sign}{hours}:{minutes:02}:{seconds_left:02}"
    return f"{sign}{minutes}:{seconds_left:02}"


def elapsed_answer(answer: Answer, since: float) -> str:
    """`0:00`, `0:00-4:32`, `1:10 (0:00-4:32)`, `unknown`, `never`.

    `since`: the instant (Unix seconds) that is 0:00. Before the parenthesis: when it probably happens, if
    that is neither of the two.
    """
    if isinstance(answer, Never):
        return "never"
    if isinstance(answer, Unknown):
        return "unknown"
    earliest = elapsed(max(answer.earliest - since, 0.0))
    latest = elapsed(max(answer.latest - since, 0.0))
    if earliest == latest or answer.is_certain:
        return earliest
    expected = None if answer.expected is None else elapsed(max(answer.expected - since, 0.0))
    return f"{earliest}-{latest}" if expected in (None, earliest, latest) else f"{expected} ({earliest}-{latest})"


def drained_in(answer: Answer, since: float) -> str:
    """`drained in 0:00-4:32`, `never drained`, or `unknown` with the reason."""
    if isinstance(answer, Never):
        return "never drained"
    if isinstance(answer, Unknown):
        soonest = 0.0 if answer.earliest is None else answer.earliest - since
        return f"unknown {listed(answer.missing)}{f'; not before {elapsed(soonest)}' if soonest >= 1.0 else ''}"
    return f"drained in {elapsed_answer(answer, since)}"


def total_text(total: Total, since: float, *, with_names: bool = False) -> str:
    """`0:40-5:00`, `unknown for 2 nodes`, `never for 1 node, 0:40-5:00 for the others`; empty without nodes.

    If the time is unknown for one node, there is none for the others: it would be read as that of all.
    """

    if total.drained is None:
        return ""
    if total.nodes == 1 or isinstance(total.drained, Never):
        return elapsed_answer(total.drained, since)
    parts = [never_text(total, with_names=with_names)] if total.never else []
    if total.unknown:
        parts.append(f"unknown for {_nodes_text(total.unknown, with_names=with_names)}")
    elif isinstance(total.drained, Window):
        parts.append(f"{elapsed_answer(total.drained, since)}{' for the others' if total.never else ''}")
    return ", ".join(parts)


def never_text(total: Total, *, with_names: bool) -> str:
    """`never for 1 node (batch-7)`."""
    return f"never for {_nodes_text(total.never, with_names=with_names)}"


def _nodes_text(names: Sequence[str], *, with_names: bool) -> str:
    return f"{counted(len(names), 'node')}{f' ({listed(names)})' if with_names else ''}"


def age_text(made: float | None, at: float) -> str:
    """` (forecast 0:12 old)`; empty for one that is newer than FRESH_SECONDS."""
    return "" if made is None or at - made <= FRESH_SECONDS else f" (forecast {elapsed(at - made)} old)"


def joined(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def blocked_by(entry: PodPlan) -> str:
    """Cause that keeps a pod on its node; empty without one."""
    if entry.protection is not None:
        until = "" if entry.protection.until is None else f" until {format_time(entry.protection.until)}"
        return f"{entry.protection.description}{until}{entry.protection.limit_note}"
    return "" if entry.outcome is Outcome.DELETE else entry.reason


def queue_text(entry: PodPlan, position: QueuePosition | None, *, of_many: bool = False) -> str:
    """`2 of 3 in queue, after shop/web-1 on worker-2`; empty for a pod that waits alone. `of_many`: for a group."""
    if position is None or position.of == 1:
        return ""
    if of_many:
        return f"{position.of} in queue, one after another"
    if position.is_undecided:
        return f"{position.of} pods share this budget; order not decided yet"
    if position.ahead is None:
        return f"1 of {position.of} in queue"
    ahead = position.ahead.entry.pod
    elsewhere = "" if ahead.node_name == entry.pod.node_name else f" on {ahead.node_name}"
    return f"{position.number} of {position.of} in queue, after {ahead.namespace}/{ahead.name}{elsewhere}"


def deadline_cause(deadline: Deadline, origin: DeadlineOrigin | None) -> str:
    """`termination grace period 15m0s of NodeClaim worker-1`, or the annotation that sets it."""
    holder = "" if origin is None else f" of {origin.object}"
    if deadline.grace_period is None:
        return f"annotation {deadline.annotation}{holder}"
    period = format_duration(round(deadline.grace_period) * NANOSECONDS_PER_SECOND)
    return f"termination grace period {period}{holder}"
