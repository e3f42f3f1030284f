"""Floor 6: the command line; one module per command."""

from gracectl.cli.root import main

__all__ = ["main"]
