"""Command line: a module or subpackage per command."""

import gc
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """The console script. Ctrl-C while Python is still loading ends it as quietly as later on."""
    _handle_sigterm()
    gc.disable()  # until the command is loaded, see root: nothing of that becomes garbage
    try:
        if "_GRACECTL_COMPLETE" in os.environ:
            from gracectl.cli.completion import become_quiet

            become_quiet()
        from gracectl.cli.output import program
        from gracectl.cli.root import root

        root(prog_name=program())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def complete() -> None:
    """The console script kubectl_complete-grace."""
    from gracectl.cli.completion import become_quiet, complete_for_kubectl

    become_quiet()
    complete_for_kubectl(sys.argv[1:])


def _handle_sigterm() -> None:
    """Let SIGTERM end the first process of a container, as it does any other until a command says otherwise.

    The kernel delivers no signal without a handler to it: one that came while Python is still loading would be lost,
    and the container would run until the end of its grace period.
    """
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_at_once)


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
