"""What this program was called as: on its own, or by kubectl, whose plugin it is under the name `kubectl-grace`.

Invariant: whatever people are told to type is what they have typed before.
"""

from __future__ import annotations

import sys
from pathlib import Path

NAME = "gracectl"
PLUGIN = "kubectl-grace"
"""kubectl runs the program of this name on PATH for `kubectl grace`."""


def program() -> str:
    """`gracectl`, or `kubectl grace`."""
    return "kubectl grace" if Path(sys.argv[0]).stem == PLUGIN else NAME


def command(*arguments: str) -> str:
    """What to type: `gracectl status -w worker-1`."""
    return " ".join((program(), *arguments))
