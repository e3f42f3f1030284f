"""Tracker of memberships in budgets: which pods have just lost theirs, as the caches have shown it to this process.

In memory only: a process that has just begun to lead knows no change from before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.membership import LostBudget, Memberships
from gracectl.policy.plan import NodeView
from gracectl.runtime.clock import Clock


class MembershipTracker:
    """See the module. `seconds`: for how long a change counts (`eviction.settleSeconds`)."""

    def __init__(self, cluster: ClusterCache, clock: Clock, seconds: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._memberships = Memberships(seconds)
        self._forget_at = 0.0
        cluster.pods.subscribe(self._pod_changed)
        cluster.budgets.subscribe(self._budget_changed)

    def configure(self, seconds: float) -> None:
        """Apply another time, also to changes that are known."""
        self._memberships.seconds = seconds

    async def lost_budgets(self, view: NodeView, before_waiting: Callable[[], None]) -> Mapping[str, LostBudget]:
        """Pods of `view` that lost their budget and have no other, by UID. `before_waiting`: see Slices."""
        now = self._clock.now()
        pods = [pod for pod in view.pods if pod.uid not in view.budgets]
        former = self._memberships.former(pods, now)
        # A pod may have had several label maps.
        keyed = [msgspec.structs.replace(each.pod, uid=str(number)) for number, each in enumerate(former)]
        found = await self._cluster.slices.run(self._cluster.matcher.by_pod(keyed), before_waiting) if keyed else {}
        before = [(each, found[str(number)][0].full_name) for number, each in enumerate(former) if str(number) in found]
        return self._memberships.lost(pods, before, now)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._memberships.pod_changed(old, new, self._clock.now())
        self._forget()

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        self._memberships.budget_changed(old, new, self._clock.now())
        self._forget()

    def _forget(self) -> None:
        if len(self._memberships) and (now := self._clock.monotonic()) >= self._forget_at:
            self._forget_at = now + self._memberships.seconds
            self._memberships.forget_old(self._clock.now())
