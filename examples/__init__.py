"""Examples that run: a whole controller against a whole embedded cluster, on virtual time.

They stand on what the tests stand on (tests/support) and are not shipped.
"""

import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[1] / "tests")
if TESTS not in sys.path:
    sys.path.append(TESTS)
