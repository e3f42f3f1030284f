"""A handler of notices for tests of sources."""

from __future__ import annotations

import anyio

from gracectl.interruption.source import NodeRef, Notice, Outcome, Receipt
from gracectl.kube.errors import ApiError
from gracectl.policy.interruption import Kind

T = 1_767_225_600.0


class StandInHandler:
    """Records notices; `outcomes` by instance or node, `drained` lets nodes be drained."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.counted: list[Outcome] = []
        self.outcomes: dict[str, Outcome | ApiError] = {}
        self.drained = anyio.Event()
        self.sleeps: list[float] = []

    def now(self) -> float:
        return T

    async def sleep(self, seconds: float) -> None:
        """A hundred times as fast."""
        self.sleeps.append(seconds)
        await anyio.sleep(seconds / 100)

    async def receive(self, notice: Notice) -> Receipt:
        self.notices.append(notice)
        name = notice.instance or notice.node
        outcome = self.outcomes.get(name, Outcome.RECORDED)
        if isinstance(outcome, ApiError):
            raise outcome
        has_node = outcome in (Outcome.RECORDED, Outcome.REPEATED)
        return Receipt(outcome, (NodeRef(name, "uid"),) if has_node else ())

    async def until_drained(self, receipt: Receipt) -> None:
        await self.drained.wait()

    def count(self, outcome: Outcome, kind: Kind | None = None) -> None:
        self.counted.append(outcome)
