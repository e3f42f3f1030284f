"""Deadlines of nodes, worked out from stamps, annotations and settings; and whether they are kept.

A deadline is known when it could be known: to each process that runs from then on, or (where faults may hide it) to the
process that has written it down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from support.clients import Deed

from gracectl.model import names
from simulation.contract import (
    NEVER,
    annotations_of,
    labels_of,
    notice_of,
    period_of_claim,
    period_of_group,
    written_deadline,
)
from simulation.observer import Observer, PodFacts, Rule, ThingFacts

WARM_UP: Final = 1.0
"""Seconds that a controller has from its start until it must be in charge."""

COUNTING: Final = 0.5
"""For so many seconds after a pod has left otherwise, a server may not yet count it, or a watch not yet show it."""

RETRIES: Final = 300.0
"""The longest pause after an error of the provider."""


class Due(msgspec.Struct, frozen=True):
    """A node must be over at `at`, and that could not be known before `known`. Monotonic seconds."""

    at: float
    known: float


class Deadlines(Rule):
    """Deadline of each node. Violations: one that a controller has moved to a later instant."""

    name = "deadline moved"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._written: defaultdict[str, list[Due]] = defaultdict(list)  # by uid of node or claim
        self._periods: defaultdict[str, set[float | None]] = defaultdict(set)  # by uid of node
        self._of_claims: dict[str, float | None] = {}  # by uid of claim
        self.told: defaultdict[str, list[Due]] = defaultdict(list)
        """By name of the node, what controllers have written on it."""

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        self._note(deed, facts)
        before, after = ((notice_of(each) or ("", NEVER))[1] for each in (deed.old, deed.new))
        if after < before:
            self._written[facts.uid].append(Due(self.seen.instant(after), self.seen.now))
        if deed.new is not None:
            self._periods[facts.uid] |= {period_of_group(each, labels_of(deed.new)) for each in self.seen.settings}
            if deed.request is not None and written_deadline(deed.new) < written_deadline(deed.old):
                at = self.seen.instant(written_deadline(deed.new))
                self.told[facts.name].append(Due(at, self.seen.now))

    def claim(self, deed: Deed, facts: ThingFacts) -> None:
        self._note(deed, facts)
        self._of_claims.setdefault(facts.uid, period_of_claim(deed.object))

    def _note(self, deed: Deed, facts: ThingFacts) -> None:
        before, after = written_deadline(deed.old), written_deadline(deed.new)
        if deed.new is not None and after > before and deed.request is not None and not _is_lifted(deed):
            self.violated(f"{deed.object['kind']} {facts.name}: the deadline was moved from {before} to {after}")
        if after < before:
            self._written[facts.uid].append(Due(self.seen.instant(after), self.seen.now))

    def of(self, name: str) -> Due | None:
        """What holds for the node of this name now; None: it has no deadline (yet), or none that is certain."""
        node = self.seen.named(name)
        return None if node is None else self.of_node(node)

    def of_node(self, node: ThingFacts) -> Due | None:
        """See `of`."""
        claims = [self.seen.claims[uid] for uid in sorted(node.claims)]
        begun = min([node.deleted, *(claim.deleted for claim in claims)])
        if begun == NEVER:
            return None
        owners = [node, *claims] if len(claims) == 1 else [node]
        dues = [Due(due.at, max(due.known, begun)) for each in owners for due in self._written[each.uid]]
        if len(claims) <= 1:
            clock = claims[0] if claims else node
            period = self._of_claims[claims[0].uid] if claims else None
            groups = self._periods[node.uid]
            if period is None and len(groups) == 1:
                (period,) = groups
            if period not in (None, NEVER) and clock.stamp != NEVER:
                assert period is not None
                dues.append(Due(clock.stamp + period, max(clock.deleted, node.since)))
        return min(dues, key=lambda due: (due.at, due.known), default=None)

    def earliest(self, node: ThingFacts) -> float:
        """The earliest deadline that a controller may believe in: of any claim that the node has had, any group, any
        setting, counted from any deletion. NEVER without one."""
        owners = [node, *(self.seen.claims[uid] for uid in node.claims)]
        if min(each.deleted for each in owners) == NEVER:
            return NEVER
        instants = [due.at for each in owners for due in self._written[each.uid]]
        periods = {*self._periods[node.uid], *(self._of_claims[uid] for uid in node.claims)}
        starts = [each.stamp for each in owners]
        instants += [start + period for start in starts for period in periods if period is not None]
        return min(instants, default=NEVER)


def _is_lifted(deed: Deed) -> bool:
    """Whether a forced deadline may have been lifted by this change."""
    return any(names.FORCED_DEADLINE in annotations_of(each) for each in (deed.old, deed.new) if each is not None)


class Lateness(Rule):
    """At its deadline an instance is asked to terminate, and each pod that would outlive it was deleted its grace
    before: as long as a controller is in charge. `life` says when one lives; without, one does when all is calm.
    """

    name = "late"

    def __init__(self, observer: Observer, deadlines: Deadlines) -> None:
        super().__init__(observer)
        self._deadlines = deadlines
        self._lives: list[tuple[float, float]] = []
        """When a controller was in charge."""
        self._is_told = False

    @contextmanager
    def life(self) -> Iterator[None]:
        """A controller lives while the block lasts."""
        began, self._is_told = self.seen.now, True
        try:
            yield
        finally:
            self._lives.append((began, self.seen.now))

    def end(self, calm: bool) -> None:
        if not self._is_told and self.seen.calm_since < NEVER:
            self._lives.append((self.seen.calm_since, self.seen.now))
        for node in self.seen.nodes.values():
            self._instance(node)
        if self._is_fair:
            for pod in self.seen.pods.values():
                self._pod_in_time(pod)

    @property
    def _is_fair(self) -> bool:
        return self.seen.terms.fair or self.seen.terms.faults_end <= 0

    def _instance(self, node: ThingFacts) -> None:
        if node.name in self.seen.terms.replaced or self.seen.is_kept(node):
            return
        if self._shares(node):
            return
        entries = self.seen.journal(node.instance)
        asked = min([self.seen.instant(each.instant) for each in entries], default=self.seen.now)
        end = min(asked, node.gone)
        failed = self.seen.stage.provider.failures.get(node.provider_id, -NEVER) + RETRIES
        late = max((self._idle(max(due.at, due.known, failed), end, due.known) for due in self._known(node)), default=0)
        if late > self.seen.terms.deadline_slack + self.seen.terms.clock_error:
            self.violated(f"node {node.name}: its instance was asked to terminate {late:.3f} s after its deadline")

    def _shares(self, node: ThingFacts) -> bool:
        others = (each for each in self.seen.nodes.values() if each.uid != node.uid)
        return any(each.provider_id == node.provider_id for each in others)

    def _known(self, node: ThingFacts) -> list[Due]:
        if not self._is_fair and self._is_told:
            return self._deadlines.told[node.name]
        due = self._deadlines.of_node(node)
        return [due] if due else []

    def _pod_in_time(self, pod: PodFacts) -> None:
        """A pod that would outlive the deadline is deleted its grace before it, and has a second at its end."""
        node = self.seen.node_of(pod)
        due = None if node is None else self._deadlines.of_node(node)
        if node is None or due is None or pod.over <= pod.bound or self.seen.is_kept(node):
            return
        if any(self.seen.ranges(node)):
            return  # its range has a deadline of its own
        bound = self.seen.terms.deadline_slack
        end = min(pod.over, node.gone, self.seen.now)
        late = self._idle(max(due.at - pod.grace, due.known, pod.bound), min(pod.asked, end))
        if late > bound:
            self.violated(f"pod {pod.name} was deleted {late:.3f} s after its time")
        # One whose grace ends in time needs no other, even if its kubelet does not tell that it has ended.
        short = next((at for at, seconds in pod.granted if seconds <= 1 or at + seconds <= due.at + 1), NEVER)
        late = self._idle(max(due.at, due.known, pod.bound), min(short, end))
        if late > bound:
            self.violated(f"pod {pod.name} was still granted more than a second {late:.3f} s after the deadline")

    def _idle(self, since: float, until: float, known: float = 0.0) -> float:
        """The longest that one controller was in charge between two instants; where faults may hide what it must know,
        only one that was there at the instant `known` counts."""
        is_certain = self._is_fair or not self._is_told
        lives = [life for life in self._lives if is_certain or life[0] <= known <= life[1]]
        return max((min(end, until) - max(began + WARM_UP, since) for began, end in lives), default=0.0)
