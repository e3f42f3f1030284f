"""Command line: a module or subpackage per command."""

import gc
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point of the console script. Exits quietly on Ctrl-C, even while modules are loading."""
    _handle_sigterm()
    gc.disable()  # until the command is loaded (see root): modules do not become garbage
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
    """Entry point of the console script kubectl_complete-grace."""
    from gracectl.cli.completion import become_quiet, complete_for_kubectl

    become_quiet()
    complete_for_kubectl(sys.argv[1:])


def _handle_sigterm() -> None:
    """Let SIGTERM end process 1 of a container while modules are loading.

    The kernel delivers no signal without a handler to process 1: the signal would be lost, and the container would run
    until the end of its grace period.
    """
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_immediately)


def _exit_immediately(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
