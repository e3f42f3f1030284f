"""A window of time as settings and objects write it: when it opens, for how long, and in which time zone.

The fields are text, as written; `policy.windows` reads them and says what is wrong.
"""

from __future__ import annotations

from typing import Final

import msgspec

MOST_WINDOWS: Final = 32
"""Maximum number of windows of one object or setting."""
LONGEST_TEXT: Final = 256
"""Maximum characters of a field."""


class Window(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Opens at each time of `schedule` (cron) in `time_zone` (IANA name), for `duration` (Go's grammar)."""

    schedule: str
    duration: str
    time_zone: str = "UTC"
