"""Karpenter with `gracectl controller` next to it, which assists: the nodes stay Karpenter's, and both evict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contenders.contender import Entry, Usage
from benchmarks.contenders.gracectl import running, settings_of
from benchmarks.contenders.karpenter import Karpenter
from benchmarks.ground.ground import KarpenterFiles
from benchmarks.ground.site import Site

QUESTIONS = ("leases", "selfsubjectaccessreviews.authorization.k8s.io", "selfsubjectaccessreviews")
"""What it writes for itself: its own Lease, and what its rights are."""

ASSISTS: dict[str, Any] = {"assist": {"karpenter": True}}


class AssistedKarpenter(Karpenter):
    """What it takes is what both take."""

    def __init__(self, files: KarpenterFiles, grace: float | None = None) -> None:
        super().__init__(files, grace)
        self.writes: dict[str, int] = {}
        """Requests of gracectl that change something, by verb and resource."""

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender."""
        async with super().entered(site, old) as entry:
            name, self.name = self.name, f"{self.name} with assistance"
            settings = {**settings_of(site), **ASSISTS}
            async with running(site.way.kubeconfig, settings, site.ground.folder) as program:
                before = await program.reading()

                async def usage() -> Usage:
                    ours, theirs = (await program.reading()).since(before), await entry.usage()
                    self.writes = {each: count for each, count in ours.requests.items() if _changes(each)}
                    return together_with(theirs, ours)

                yield Entry(entry.go, usage, goes_on=True)
            self.name = f"{name} with assistance"


def together_with(theirs: Usage, ours: Usage) -> Usage:
    """What two programs take at the same time."""
    joined = theirs.and_then(ours)
    memory = None if theirs.memory is None or ours.memory is None else theirs.memory + ours.memory
    return Usage(
        requests=joined.requests,
        refused=joined.refused,
        failed=joined.failed,
        cpu=joined.cpu,
        memory=memory,
        lateness=ours.lateness,
    )


def _changes(operation: str) -> bool:
    verb, _, resource = operation.partition(" ")
    return verb in ("create", "update", "patch", "delete") and resource not in QUESTIONS
