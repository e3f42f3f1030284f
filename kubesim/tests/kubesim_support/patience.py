"""Limits of waits on the real clock.

A machine that is busy with other things may stop a test at any place for any time. So a limit only ends a test that
hangs; what must be quick is compared with what the test has seen this machine do.
"""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 100.0
"""Seconds that a test waits for what must happen. A wait that reaches it hangs."""
