"""`make examples`: play the examples that the docs show, on virtual time.

Without names: all except the board, whose pictures need a browser, and side_by_side, which needs kubectl. Options go
to each example: `--update` writes its output and pictures to the docs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

EXAMPLES: Final = {
    "three_replicas": "timelines and picture of docs/deadlines.md",
    "beforehand": "output and picture of docs/plan.md",
    "rehearsal": "output of docs/rehearsal.md",
    "held": "picture of docs/tracing.md",
    "live": "picture of the README",
    "board": "pictures of docs/ui.md; --measure prints frames and memory",
    "side_by_side": "picture of docs/drain.md and the README; on the real clock, with kubectl (KUBECTL=/path)",
}
NAMED_ONLY: Final = ("board", "side_by_side")


def main(arguments: list[str]) -> None:
    """Play the examples that are named first; SystemExit(2) if one does not exist."""
    names = [each for each in arguments if not each.startswith("-")]
    if unknown := [name for name in names if name not in EXAMPLES]:
        listed = "\n".join(f"  {name:15} {text}" for name, text in EXAMPLES.items())
        print(f"examples: no example {', '.join(unknown)}; choose from:\n{listed}", file=sys.stderr)
        raise SystemExit(2)
    options = [each for each in arguments if each.startswith("-")]
    for name in names or [name for name in EXAMPLES if name not in NAMED_ONLY]:
        importlib.import_module(f"examples.{name}").main(options)


if __name__ == "__main__":
    main(sys.argv[1:])
