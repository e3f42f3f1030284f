"""Floor 6: the command line; one module per command."""

import signal
import sys


def main() -> None:
    """The console script. Ctrl-C while Python is still loading ends it as quietly as later on."""
    try:
        from gracectl.cli.program import program
        from gracectl.cli.root import root

        root(prog_name=program())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
