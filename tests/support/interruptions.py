"""A queue of notices for stories on virtual time: what is not acknowledged comes again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import anyio

from gracectl.app.controller import Controller
from gracectl.interruption.source import Handler, Notice, Outcome, Source
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.policy.interruption import Interruption, decode
from support.stage import Stage

VISIBLE_AGAIN_SECONDS = 30.0


class NoticeQueue:
    """Source `queue`. `answers`: instant and outcome of each acknowledged notice; `is_away`: it is silent."""

    name = "queue"

    def __init__(self) -> None:
        self.problem = ""
        self.notices: list[Notice] = []
        self.answers: list[tuple[float, str]] = []
        self.drained: list[tuple[float, str]] = []
        self.is_away = False
        self._news = anyio.Event()

    def send(self, *notices: Notice) -> None:
        self.notices += notices
        self._news.set()
        self._news = anyio.Event()

    async def poll(self, handler: Handler) -> None:
        async with anyio.create_task_group() as group:
            received: list[Notice] = []
            while True:
                for notice in self.notices if not self.is_away else ():
                    if not any(each is notice for each in received):
                        received.append(notice)
                        group.start_soon(self._receive, handler, notice, received)
                with anyio.move_on_after(1.0):
                    await self._news.wait()

    async def _receive(self, handler: Handler, notice: Notice, received: list[Notice]) -> None:
        began = anyio.current_time()
        try:
            receipt = await handler.receive(notice)
        except ApiError:
            await handler.sleep(VISIBLE_AGAIN_SECONDS)
            received[:] = [each for each in received if each is not notice]
            return
        self.notices[:] = [each for each in self.notices if each is not notice]
        self.answers.append((round(began, 3), receipt.outcome.value))
        if receipt.outcome in (Outcome.RECORDED, Outcome.REPEATED):
            await handler.until_drained(receipt)
            self.drained.append((round(anyio.current_time(), 3), notice.node or notice.provider_id))


@contextmanager
def hearing(*sources: Source) -> Iterator[None]:
    """Each controller that is made meanwhile hears these."""
    make: Any = Controller.__init__

    def made(controller: Controller, *arguments: Any, **options: Any) -> None:
        make(controller, *arguments, **options)
        controller.hear_from(sources)

    with patch.object(Controller, "__init__", made):
        yield


def written_on(stage: Stage, node: str) -> Interruption | None:
    """What the annotation of a node says."""
    value = (stage.node(node) or {"metadata": {}})["metadata"].get("annotations", {}).get(names.INTERRUPTION)
    return None if value is None else decode(value)
