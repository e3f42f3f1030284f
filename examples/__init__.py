"""Examples that run: a whole controller against a whole embedded cluster, on virtual time.

They stand on what the tests stand on (tests/support) and are not shipped.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
for tests in (str(ROOT / "tests"), str(ROOT / "kubesim" / "tests")):
    if tests not in sys.path:
        sys.path.append(tests)
