"""Word list: keeps private words out of code, docs and messages. `python tools/words.py` lists what breaks it.

To extend it, add a pattern and the word to use instead. A line that needs such a word (a name that Kubernetes or a
specification defines, a person) ends in, or follows, a comment with `words: ok`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

INSTEAD: Final = {
    r"nobody|no-one": "nothing, no controller, no process …: software is no person",
    r"somebody|someone else|anybody|everybody|whoever|whomever": "another client, any pod, each node …",
    r"whom": "it, them; a role (operator, workload owner)",
    r"he|him|his|she|her": "it; you",
    r"farewell|muster|tenure|ledger": "finalizer cleanup, members, manager, store",
    r"misspelt|misspellings?": "invalid annotation",
    r"outlooks?|prospects?": "forecast, bounds",
    r"standings?|holdings": "status, usage",
    r"doomed": "scheduled for deletion",
    r"foretold|foretells?": "predicted",
    r"tallies|census": "statistics, counts",
    r"gracious|graceful to": "say what is done",
    r"DESIGN \d[\d.]*|the seeds?'?s?": "name the specification, or say the rule",
    r"floors|floor \d": "layer",
}
"""Pattern (whole words) → what to write instead."""

WHERE: Final = ("*.py", "*.md", "*.yaml", "*.tpl", "*.toml", "Makefile")
EXCEPT: Final = re.compile(
    r"recordings/|/recorded/|oracles/|\.json$|^tools/words\.py$|^CHANGELOG\.md$|^docs/benchmarks/"
)

WORD: Final = re.compile("|".join(rf"(?P<w{i}>\b(?:{pattern})\b)" for i, pattern in enumerate(INSTEAD)), re.IGNORECASE)


def found_in(path: str) -> list[str]:
    """Lines of a file that use a listed word, with what to write instead."""
    found = []
    before = ""
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if (hit := WORD.search(line)) and "words: ok" not in line and "words: ok" not in before:
            reason = list(INSTEAD.values())[int((hit.lastgroup or "w0")[1:])]
            found.append(f"{path}:{number}: {hit[0]!r}: write {reason}")
        before = line
    return found


def main() -> int:
    """Print every use of a listed word; 1 if there is one."""
    listed = subprocess.run(["git", "ls-files", "--", *WHERE], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.splitlines() if not EXCEPT.search(path) and (ROOT / path).is_file()]
    found = [line for path in paths for line in found_in(path)]
    print("\n".join(found) or f"words: {len(paths)} files are clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
