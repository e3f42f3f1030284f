"""How many CPU microseconds each part may cost. The first is the design's; the others are about twice what they cost
when they were written down, so that what becomes much slower is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

YARDSTICK: Final = "yardstick"
"""Work that has nothing to do with gracectl: by it machines are compared."""

BUDGETS: Final[Mapping[str, float]] = {
    "pod event, 1,000 pods cached": 25,
    "pod event, 150,000 pods cached": 25,
}
"""By the name of a benchmark; what is not in here has no budget."""
