"""`/healthz` and `/readyz`: the checks of others as a kubelet reads them, 200 or 503, and as people do, a line each.

Invariant: a check that fails to look is one that has failed, and is logged; the process lives on until it is killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from aiohttp import web

from gracectl.telemetry.connections import Bodies
from gracectl.telemetry.health import Check, report
from gracectl.telemetry.server import Answer

logger = logging.getLogger(__name__)

ALIVE, READY = "/healthz", "/readyz"

Checks = Callable[[], Iterable[Check]]


def probes(alive: Checks, ready: Checks) -> Mapping[str, Answer]:
    """What answers at which path."""
    return {ALIVE: _answer(alive), READY: _answer(ready)}


def _answer(checks: Checks) -> Answer:
    async def answer(request: web.BaseRequest, _: Bodies) -> web.Response:
        try:
            is_ok, text = report(checks())
        except Exception:  # whatever a part makes of being asked
            logger.exception("%s could not be answered", request.path)
            is_ok, text = False, "FAILED checks: they could not be made; the log of gracectl says why\n"
        return web.Response(status=200 if is_ok else 503, text=text)

    return answer
