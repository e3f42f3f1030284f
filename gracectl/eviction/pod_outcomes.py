"""How the pods that a drain waits for have left, counted when they are seen to be gone.

A plan in which a pod no longer holds its node tells that it has left; what was done to it is known from the evictor and
the deleter. What a predecessor of ours has asked for we cannot know: such a pod has left by itself, as far as this
process can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

from gracectl.eviction.deletion import Deletion, ScheduledDeletion
from gracectl.eviction.lane import Candidate
from gracectl.kube.errors import ApiError
from gracectl.policy.plan import Plan


class PodOutcome(StrEnum):
    """How a pod has come to hold its node no longer."""

    EVICTED = "evicted"
    """The server has agreed to its eviction; it had all of its grace."""
    DELETED = "deleted"
    """It was deleted for the deadline, whether or not it was evicted before."""
    LEFT = "left"
    """It has finished, or somebody else has ended it."""
    ABANDONED = "abandoned"
    """It was still there when the end of its node was over."""


class PodOutcomeCounts:
    """All pods that have left, over all nodes, by manner."""

    def __init__(self) -> None:
        self._counts: Counter[PodOutcome] = Counter()

    def note(self, manner: PodOutcome, number: int = 1) -> None:
        """So many have left."""
        self._counts[manner] += number

    def statistics(self) -> Mapping[PodOutcome, int]:
        """All so far."""
        return {manner: self._counts[manner] for manner in PodOutcome}


class PodOutcomeTracker:
    """Listens to the evictor and to the deleter, and remembers what became of pods that still hold their node.

    `is_asking_for`: whether the server is being asked for the end of the pod of that uid: (its eviction, its deletion).
    """

    def __init__(
        self,
        counts: PodOutcomeCounts,
        is_asking_for: Callable[[str], tuple[bool, bool]],
    ) -> None:
        self._counts = counts
        self._is_asking_for = is_asking_for
        self._holding: dict[str, frozenset[str]] = {}  # by node, the uids of the pods that hold it by its last plan
        self._told: dict[str, PodOutcome] = {}  # by uid, of pods that hold their node

    def __len__(self) -> int:
        """How many pods are remembered."""
        return len(self._told)

    def evicted(self, candidate: Candidate) -> None:
        """See EvictionListener."""
        self._tell(candidate.node, candidate.uid, PodOutcome.EVICTED)

    def refused(self, candidate: Candidate, refusal: ApiError) -> None:
        """See EvictionListener: it stays."""

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener."""
        self._tell(deletion.pod.node, deletion.pod.uid, PodOutcome.DELETED)

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener: it stays."""

    def note(self, node: str, plan: Plan) -> Mapping[str, PodOutcome]:
        """Count who has left a node since the plan before, and say how, by uid; to be told of each plan before anybody
        acts upon it."""
        holding = frozenset([entry.pod.uid for entry in plan.left])
        manners = {uid: self._manner_of(uid) for uid in self._holding_of(node) - holding}
        for manner in manners.values():
            self._counts.note(manner)
        self._holding[node] = holding
        return manners

    def close(self, node: str, *, is_over: bool) -> None:
        """The end of a node is no longer under way. `is_over`: whoever has held it to the last is left to himself; else
        somebody goes on with it, or it stays with its pods."""
        for uid in self._holding.pop(node, ()):
            if is_over:
                self._counts.note(PodOutcome.ABANDONED)
            self._told.pop(uid, None)

    def _holding_of(self, node: str) -> frozenset[str]:
        return self._holding.get(node, frozenset())

    def _tell(self, node: str, uid: str, manner: PodOutcome) -> None:
        # News of its end may have come before the answer: then it is counted already.
        if uid in self._holding_of(node):
            self._told[uid] = manner

    def _manner_of(self, uid: str) -> PodOutcome:
        told = self._told.pop(uid, None)
        is_evicting, is_deleting = self._is_asking_for(uid)
        if is_deleting:
            return PodOutcome.DELETED
        return told or (PodOutcome.EVICTED if is_evicting else PodOutcome.LEFT)
