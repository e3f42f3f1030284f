"""`python -m fuzz SECONDS [TARGET ...]`."""

import logging
import sys

from fuzz.run import main

logging.disable()  # of hostile input there is much to say
sys.exit(main(sys.argv[1:] or ("60",)))
