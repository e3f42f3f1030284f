"""Outcomes of the pods that a drain waits for, counted when they are seen to be gone.

A plan in which a pod no longer holds its node shows that it has left; what was done to it is known from the evictor
and the deleter. Requests of another process are unknown: such a pod has left by itself, as far as this process can
tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.errors import ApiError
from gracectl.policy.plan import Plan


class PodOutcome(StrEnum):
    """How a pod has left its node."""

    EVICTED = "evicted"
    """The server has agreed to its eviction; it had all of its grace."""
    DELETED = "deleted"
    """The pod was deleted for the deadline, whether or not it was evicted before."""
    LEFT = "left"
    """The pod has finished, or another client has removed it."""
    ABANDONED = "abandoned"
    """The pod still existed when the termination of its node ended."""


class PodOutcomeTracker:
    """Listener of the evictor and the deleter that remembers what became of pods that still hold their node.

    `counts`: of the pods that have left, over all nodes, by outcome and NodeLabels. `in_flight`: whether a request for
    the pod of that UID is in flight: (an eviction, a deletion).
    """

    def __init__(self, counts: Counter[tuple[str, ...]], in_flight: Callable[[str], tuple[bool, bool]]) -> None:
        self._counts = counts
        self._in_flight = in_flight
        self._holding: dict[str, frozenset[str]] = {}  # by node, the uids of the pods that hold it by its last plan
        self._outcomes: dict[str, PodOutcome] = {}  # by uid, of pods that hold their node
        self._counts_of_node: dict[str, Counter[PodOutcome]] = {}

    def __len__(self) -> int:
        """Number of pods remembered."""
        return len(self._outcomes)

    def evicted(self, candidate: EvictionCandidate) -> None:
        """See EvictionListener."""
        self._note_outcome(candidate.node, candidate.uid, PodOutcome.EVICTED)

    def refused(self, candidate: EvictionCandidate, refusal: ApiError) -> None:
        """See EvictionListener: it stays."""

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener."""
        self._note_outcome(deletion.pod.node, deletion.pod.uid, PodOutcome.DELETED)

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener: it stays."""

    def note(self, node: str, plan: Plan, labels: tuple[str, ...] = ()) -> Mapping[str, PodOutcome]:
        """Count the pods that have left a node with these NodeLabels since the plan before, by uid; called with each
        plan before it is carried out.
        """
        holding = frozenset([entry.pod.uid for entry in plan.left])
        outcomes = {uid: self._count(node, uid, labels) for uid in self._holding_of(node) - holding}
        self._holding[node] = holding
        return outcomes

    def pod_left(self, node: str, uid: str, labels: tuple[str, ...] = ()) -> PodOutcome:
        """Count a pod that held this node by the last plan and has left it since."""
        self._holding[node] = self._holding_of(node) - {uid}
        return self._count(node, uid, labels)

    def close(self, node: str, labels: tuple[str, ...] = (), *, is_over: bool) -> Mapping[PodOutcome, int]:
        """The termination of a node has ended; returns what has become of its pods. `is_over`: pods that held it to the
        last are abandoned; otherwise another process continues, or the node stays with its pods.
        """
        found = self._counts_of_node.pop(node, Counter())
        for uid in self._holding.pop(node, ()):
            if is_over:
                self._counts[PodOutcome.ABANDONED, *labels] += 1
                found[PodOutcome.ABANDONED] += 1
            self._outcomes.pop(uid, None)
        return found

    def _holding_of(self, node: str) -> frozenset[str]:
        return self._holding.get(node, frozenset())

    def _note_outcome(self, node: str, uid: str, outcome: PodOutcome) -> None:
        # The watch may have shown its end before the response: then it is counted already.
        if uid in self._holding_of(node):
            self._outcomes[uid] = outcome

    def _count(self, node: str, uid: str, labels: tuple[str, ...]) -> PodOutcome:
        outcome = self._outcome_of(uid)
        self._counts[outcome, *labels] += 1
        self._counts_of_node.setdefault(node, Counter())[outcome] += 1
        return outcome

    def _outcome_of(self, uid: str) -> PodOutcome:
        outcome = self._outcomes.pop(uid, None)
        is_evicting, is_deleting = self._in_flight(uid)
        if is_deleting:
            return PodOutcome.DELETED
        return outcome or (PodOutcome.EVICTED if is_evicting else PodOutcome.LEFT)
