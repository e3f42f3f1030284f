"""What becomes of the pods of old nodes, as the watch shows it: when the last one was told to end, and when all of them
are gone and replaced; how many of an app were ever missing at once."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.ground.site import App, Site
from gracectl.model.pod import Pod


class Passage:
    """From its making on, of the pods of these apps that are on the nodes `old` then. Keeps count by itself: what
    it costs does not grow with the pods."""

    def __init__(self, site: Site, apps: Iterable[App], old: Iterable[str]) -> None:
        self._site = site
        self._apps = {app.name: app for app in apps}
        self._left = {pod.uid for node in set(old) for pod in site.pods.values() if pod.node_name == node}
        self._told = set(self._left)
        self._healthy = {name: site.healthy(name) for name in self._apps}
        self.pods = len(self._left)
        self.began = site.clock.monotonic()
        self.evicted: float | None = None
        """Seconds until the last of them was told to end."""
        self.most_missing = dict.fromkeys(self._apps, 0)
        self._unsubscribe = site.pods.subscribe(self._saw)

    def begin(self) -> None:
        """The clock counts from now."""
        self.began = self._site.clock.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._site.clock.monotonic() - self.began

    async def told(self) -> None:
        """Wait until all of them have been told to end."""
        await self._site.until(lambda: not self._told, "pods of old nodes to be evicted")

    async def over(self) -> float:
        """Wait until all of them are gone, their successors are Ready, and the budgets know it. Returns the seconds."""
        apps = tuple(self._apps.values())
        await self._site.until(lambda: not self._left and self._site.settled(*apps), "the replacements")
        seconds = self.seconds
        self._unsubscribe()
        return seconds

    def _saw(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if new is None:
            self._left.discard(pod.uid)
        if pod.uid in self._told and (new is None or new.deletion_timestamp is not None):
            self._told.discard(pod.uid)
            if not self._told:
                self.evicted = self.seconds
        self._count(old, new)

    def _count(self, old: Pod | None, new: Pod | None) -> None:
        before, after = (each is not None and each.ready and each.deletion_timestamp is None for each in (old, new))
        if before == after:
            return
        pod = new or old
        assert pod is not None
        name = self._site.app_of(pod)
        if name in self._apps:
            self._healthy[name] += after - before
            missing = self._apps[name].replicas - self._healthy[name]
            self.most_missing[name] = max(self.most_missing[name], missing)
