"""What becomes of the pods of old nodes, as the watch shows it: when the last one was told to end, and when all of them
are gone and replaced; how many of an app were ever missing at once; which promises were broken."""

from __future__ import annotations

import math
from collections.abc import Iterable

from benchmarks.ground.site import GRACE, App, Site
from benchmarks.ground.waiting import STILL
from gracectl.model.pod import Pod


class Passage:
    """From its making on, of the pods that are on the nodes `old` then; the clock counts from `begin` on.

    Pods to which something was promised take their time by right: they are watched, and not waited for. What it costs
    does not grow with the number of pods.
    """

    def __init__(self, site: Site, apps: Iterable[App], old: Iterable[str], deadline: float | None = None) -> None:
        """`deadline`: promises end where a pod's grace would begin that ends so many seconds from the beginning."""
        self._site = site
        latest = math.inf if deadline is None else site.clock.now() + deadline - GRACE
        self._apps = {app.name: app for app in apps}
        self._waited = tuple(app for app in self._apps.values() if app.promise is None)
        self._left: set[str] = set()
        self._promised: dict[str, float] = {}
        self._protected: dict[str, float] = {}
        nodes = set(old)
        for pod in site.pods.values():
            app = self._apps.get(site.app_of(pod))
            if app is not None and pod.node_name in nodes:
                if app.promise is None:
                    self._left.add(pod.uid)
                else:
                    self._promised[pod.uid] = min(pod.created + app.promise, latest)
                    if pod.started is not None and pod.started + app.promise < latest:
                        self._protected[pod.uid] = pod.started + app.promise
        self._told = set(self._left)
        self._healthy = {name: site.healthy(name) for name in self._apps}
        self._began = site.clock.monotonic()
        self.pods = len(self._left)
        self.evicted: float | None = None
        """Seconds until the last of them was told to end."""
        self.most_missing = dict.fromkeys(self._apps, 0)
        self.promises_broken = 0
        self.after_promises: list[float] = []
        """Seconds from the end of each protection, which counts from the start of the pod, until it was told to end."""
        self._unsubscribe = site.pods.subscribe(self._saw)

    def begin(self) -> None:
        """The clock counts from now."""
        self._began = self._site.clock.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._site.clock.monotonic() - self._began

    @property
    def untold(self) -> int:
        """How many of them are not yet told to terminate."""
        return len(self._told)

    @property
    def is_over(self) -> bool:
        """Whether all of them are gone, their successors Ready, and the budgets know it."""
        return not self._left and self._site.settled(*self._waited)

    async def told(self) -> None:
        """Wait until all of them have been told to end."""
        await self._site.until(lambda: not self._told, "pods of old nodes to be told to end")

    async def over(self) -> float:
        """Wait until it is over. Returns the seconds."""
        await self._site.until(lambda: self.is_over, "the replacements of the evicted pods")
        return self.seconds

    async def promises_kept(self) -> None:
        """Wait until those with a promise have left, too."""
        longest = max(self._promised.values(), default=0.0) - self._site.clock.now()
        await self._site.until(
            lambda: not self._promised, "pods to which something was promised", max(0.0, longest) + STILL
        )

    def end(self) -> None:
        """Nothing is counted any more."""
        self._unsubscribe()

    def _saw(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        is_told = new is None or new.deletion_timestamp is not None
        if new is None:
            self._left.discard(pod.uid)
        if is_told and pod.uid in self._told:
            self._told.discard(pod.uid)
            if not self._told:
                self.evicted = self.seconds
        if is_told and pod.uid in self._promised:
            # The instants of the server are whole seconds.
            self.promises_broken += self._site.clock.now() < self._promised.pop(pod.uid) - 1
            if pod.uid in self._protected:
                self.after_promises.append(self._site.clock.now() - self._protected.pop(pod.uid))
        self._count(pod, old, new)

    def _count(self, pod: Pod, old: Pod | None, new: Pod | None) -> None:
        before, after = (each is not None and each.ready and each.deletion_timestamp is None for each in (old, new))
        name = self._site.app_of(pod)
        if before != after and name in self._apps:
            self._healthy[name] += after - before
            missing = self._apps[name].replicas - self._healthy[name]
            self.most_missing[name] = max(self.most_missing[name], missing)
