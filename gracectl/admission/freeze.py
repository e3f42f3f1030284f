"""Warnings of a freeze: people who delete a node, or create a NodeDrain, learn of it where they do so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from gracectl.admission import reviews
from gracectl.policy.freeze import Freeze

DELETION: Final = "this deletion is not stopped, but everything voluntary is; run gracectl unfreeze to end the freeze"
CAMPAIGN: Final = "no node begins before the freeze ends; run gracectl unfreeze to end it"


class FreezeWarner:
    """Handler that adds a warning to what `handler` allows while there is a freeze. `consequence`: for the request."""

    def __init__(self, handler: reviews.Handler, freeze: Callable[[], Freeze | None], consequence: str) -> None:
        self._handler = handler
        self._freeze = freeze
        self._consequence = consequence

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        response = await self._handler(request)
        freeze = self._freeze()
        if freeze is None or response.denial is not None:
            return response
        return msgspec.structs.replace(response, warnings=(*response.warnings, f"{freeze}: {self._consequence}"))
