"""Floor 6: the command line; one module per command."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """The console script. Ctrl-C while Python is still loading ends it as quietly as later on."""
    _heed_sigterm()
    try:
        from gracectl.cli.output import program
        from gracectl.cli.root import root

        root(prog_name=program())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _heed_sigterm() -> None:
    """Let SIGTERM end the first process of a container, as it does any other until a command says otherwise.

    The kernel keeps signals without a handler from it: one that came while Python is still loading would be lost, and
    whoever sent it would wait for all of its grace.
    """
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_at_once)


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
