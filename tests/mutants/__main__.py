"""`python -m mutants [-j N] [--tests PATH ...] [NAME ...]`."""

import sys

from mutants.run import main

sys.exit(main(sys.argv[1:]))
