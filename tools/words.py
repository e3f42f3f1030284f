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

PLAIN: Final = {
    r"for ever": "forever, indefinitely",
    r"at once": "immediately, at the same time",
    r"beside": "next to, in addition to, alongside",
    r"under way": "in progress, running",
    r"any more|no more(?! than)": "no longer",
    r"so long(?! as)|as long as so long": "for that long, while",
    r"(?:is|are) to be": "must be, will be",
    r"what is (?:left|waited for)": "remaining, pending",
    r"told|asks? for patience": "reported, throttled",
    r"those (?:that|of|who)": "the noun: the pods that, the node's …",
    r"nor|lest|thus|whatever|wherever|whenever": "rewrite the sentence",
    r"not known whether": "unknown",
    r"comes? to (?:its|an) end|(?:is|are) over": "finishes, ends, expires",
    r"(?:is|are) held|holds? (?:a|the|its) nodes?": "is blocked, blocks",
    r"gives? back|takes? up again": "releases, resumes",
    r"has a line": "say what has what",
    r"whose|likewise|all the same|as ever": "name the thing",
    r"labelled|colours?|grey|defences?|towards": "US spelling",
}
"""Pattern (whole words) → the field's phrase. Pages only, outside code blocks and what programs write into them."""
CODE: Final = {
    pattern: PLAIN[pattern]
    for pattern in ("for ever", "beside", "told|asks? for patience", "gives? back|takes? up again")
} | {r"lest|thus": "rewrite the sentence"}
"""The part of them that the product's code does without as well."""

WHERE: Final = ("*.py", "*.md", "*.yaml", "*.tpl", "*.toml", "Makefile")
EXCEPT: Final = re.compile(
    r"recordings/|/recorded/|oracles/|\.json$|^tools/words\.py$|^CHANGELOG\.md$|^docs/benchmarks/"
)

WRITTEN: Final = re.compile(
    r"^ *(```|~~~).*?^ *\1|<!-- (?:measured|values): .*?<!-- end.*?-->|<!--(?! words).*?-->", re.DOTALL | re.MULTILINE
)
"""Code block of a page, or a table that a program writes."""


def compiled(words: dict[str, str]) -> re.Pattern[str]:
    """One pattern with a group for each entry."""
    return re.compile("|".join(rf"(?P<w{i}>\b(?:{pattern})\b)" for i, pattern in enumerate(words)), re.IGNORECASE)


WORD, PHRASE, CODE_PHRASE = compiled(INSTEAD), compiled(PLAIN), compiled(CODE)


def found_in(path: str) -> list[str]:
    """Lines of a file that use a listed word, with what to write instead."""
    text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    found = _found(path, text, WORD, INSTEAD)
    if path.endswith(".md"):
        found += _found(path, WRITTEN.sub(lambda block: "\n" * block[0].count("\n"), text), PHRASE, PLAIN)
    if path.startswith("gracectl/") and path.endswith(".py"):
        found += _found(path, text, CODE_PHRASE, CODE)
    return found


def _found(path: str, text: str, word: re.Pattern[str], words: dict[str, str]) -> list[str]:
    found = []
    before = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if (hit := word.search(line)) and "words: ok" not in line and "words: ok" not in before:
            reason = list(words.values())[int((hit.lastgroup or "w0")[1:])]
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
