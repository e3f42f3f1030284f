"""NodeDrains for the board: all of them, watched; unchanged ones are the same JSON object as before."""

from __future__ import annotations

import logging

from gracectl.cli.drains.view import drain_row
from gracectl.cli.report import Json
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.resources import NODE_DRAINS
from gracectl.model.nodedrain import NodeDrain
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

MOST_DRAINS = 50
"""The newest ones are shown."""


class DrainRows:
    """The newest NodeDrains; none where the cluster does not serve them."""

    def __init__(self) -> None:
        self._cache: Cache[NodeDrain] = Cache(NODE_DRAINS.plural)
        self._rows: dict[str, tuple[NodeDrain, Json]] = {}  # by UID
        self._is_refused = False

    @property
    def json(self) -> list[Json] | None:
        """Rows in the JSON of the board, the newest first; None: no permission to read them."""
        if self._is_refused:
            return None
        newest = sorted(self._cache.values(), key=lambda drain: (-drain.created, drain.name))[:MOST_DRAINS]
        known = self._rows
        self._rows = {
            drain.uid: found if (found := known.get(drain.uid)) and found[0] is drain else (drain, drain_row(drain))
            for drain in newest
        }
        return [row for _, row in self._rows.values()]

    async def follow(self, client: KubeClient, clock: Clock) -> None:
        """Follow them until cancelled; without permission there are none."""
        settings = ReflectorSettings(maximum_pause=5.0, optional=True)
        try:
            await Reflector(client, NODE_DRAINS, self._cache, clock, settings=settings).run()
        except Forbidden as refusal:
            self._is_refused = True
            logger.warning("nodedrains: not shown: %s", refusal)
