"""What is amiss, in words: each trouble is logged when it begins or changes, and when it is over."""

from __future__ import annotations

import logging
from enum import Enum

logger = logging.getLogger(__name__)


class Trouble(Enum):
    """Of what kind; the value is what is said when it is over."""

    AWAY = "logind answers"
    LOCK = "logind gives the lock"
    DELAY = "logind grants as long as is needed"


_LEVELS = {Trouble.AWAY: logging.WARNING, Trouble.LOCK: logging.ERROR, Trouble.DELAY: logging.ERROR}


class Troubles:
    """One text for each kind of trouble, "" for none."""

    def __init__(self) -> None:
        self._texts: dict[Trouble, str] = {}

    @property
    def text(self) -> str:
        """All of them."""
        return "; ".join(self._texts[kind] for kind in Trouble if kind in self._texts)

    def note(self, kind: Trouble, text: str) -> None:
        """That is how it is now."""
        before = self._texts.get(kind, "")
        if text == before:
            return
        if text:
            self._texts[kind] = text
            logger.log(_LEVELS[kind], "%s", text)
        else:
            del self._texts[kind]
            logger.info("%s now", kind.value)
