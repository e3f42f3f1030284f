"""`python -m simulation`: see simulation.command."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # The order of sets is Python's own chance; a run must not depend on it.
    os.execve(
        sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
    )

from simulation.command import main

sys.exit(main(sys.argv[1:]))
