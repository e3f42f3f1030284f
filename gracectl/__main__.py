"""`python -m gracectl` is `gracectl`."""

from gracectl.cli import main

main()
